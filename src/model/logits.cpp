#include "model/logits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace sluice {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr std::size_t kLanes = 4;
constexpr std::size_t kBlock = 64;
static_assert(kExpBlock % kLanes == 0 && kBlock % kLanes == 0);

// Compilers turn these into what the target has: one register of SSE or NEON.
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = std::int32_t __attribute__((vector_size(kLanes * sizeof(std::int32_t))));

Floats load(const float* from) {
  Floats result;
  std::memcpy(&result, from, sizeof(result));
  return result;
}

// 2^n * 2^f with n whole and f in [-1/2, 1/2]; 2^f by its series.
template <class F, class I>
F exp_of(F x) {
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to a whole number
  const F t = x * 1.44269504088896341F;
  const F shifted = t + kRound;
  const F whole = shifted - kRound;
  const F f = t - whole;
  F p = f * 1.54353e-4F + 1.33335581e-3F;
  p = p * f + 9.61812911e-3F;
  p = p * f + 5.55041087e-2F;
  p = p * f + 2.40226507e-1F;
  p = p * f + 6.93147181e-1F;
  p = p * f + 1.0F;
  const I bits = std::bit_cast<I>(shifted) - std::bit_cast<I>(F{} + kRound);
  return p * std::bit_cast<F>((bits + 127) << 23);
}

// exp of a vector; what is not above -87, NaN included, gives 0.
Floats exp_or_zero(Floats x) {
  const Ints above = x > -87.0F;
  const Floats safe = std::bit_cast<Floats>(std::bit_cast<Ints>(x) & above);
  return std::bit_cast<Floats>(std::bit_cast<Ints>(exp_of<Floats, Ints>(safe)) & above);
}

float sum_of(Floats v) {
  float sum = 0.0F;
  for (std::size_t i = 0; i < kLanes; ++i) sum += v[i];
  return sum;
}

// The largest of kBlock values; NaNs do not count.
float block_max(const float* values) {
  Floats best = Floats{} - kInfinity;
  for (std::size_t i = 0; i < kBlock; i += kLanes) {
    const Floats v = load(values + i);
    best = v > best ? v : best;
  }
  float result = -kInfinity;
  for (std::size_t i = 0; i < kLanes; ++i) result = best[i] > result ? best[i] : result;
  return result;
}

}  // namespace

float fast_exp(float x) {
  if (!(x > -87.0F)) return 0.0F;
  Floats v = Floats{} + x;
  return exp_or_zero(v)[0];
}

Token argmax(std::span<const float> logits) {
  float best = -kInfinity;
  std::size_t where = logits.size();  // the first block with the best value
  std::size_t i = 0;
  for (; i + kBlock <= logits.size(); i += kBlock) {
    const float value = block_max(logits.data() + i);
    if (value > best) {
      best = value;
      where = i;
    }
  }
  for (; i < logits.size(); ++i) {
    if (logits[i] > best) {
      best = logits[i];
      where = i;
    }
  }
  for (; where < logits.size(); ++where) {
    if (logits[where] == best) return static_cast<Token>(where);
  }
  return -1;
}

std::vector<Logit> best_of(std::span<const float> logits, std::size_t n) {
  std::vector<Logit> best;
  n = std::min(n, logits.size());
  if (n == 0) return best;
  const std::size_t room = 2 * n + 64;
  best.reserve(room);
  float least = -kInfinity;  // of the n best so far: what is not above it cannot enter
  const auto add = [&](std::size_t i) {
    if (!(logits[i] > least)) return;
    best.push_back({logits[i], static_cast<Token>(i)});
    if (best.size() < room) return;
    std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(n - 1), best.end());
    best.resize(n);
    least = best.back().value;
  };
  std::size_t i = 0;
  for (; i + kBlock <= logits.size(); i += kBlock) {
    if (!(block_max(logits.data() + i) > least)) continue;
    for (std::size_t k = i; k < i + kBlock; ++k) add(k);
  }
  for (; i < logits.size(); ++i) add(i);
  n = std::min(n, best.size());
  std::partial_sort(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(n), best.end());
  best.resize(n);
  return best;
}

double exp_sum(std::span<const float> logits, float max, float scale, std::vector<float>* blocks) {
  if (blocks != nullptr) blocks->clear();
  double total = 0.0;
  for (std::size_t begin = 0; begin < logits.size(); begin += kExpBlock) {
    const std::size_t end = std::min(begin + kExpBlock, logits.size());
    Floats sums{};
    std::size_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      sums += exp_or_zero((load(logits.data() + i) - max) * scale);
    }
    float sum = sum_of(sums);
    for (; i < end; ++i) sum += fast_exp((logits[i] - max) * scale);
    if (blocks != nullptr) blocks->push_back(sum);
    total += static_cast<double>(sum);
  }
  return total;
}

float log_sum_exp(std::span<const float> logits) {
  const Token best = argmax(logits);
  if (best < 0) return -kInfinity;
  const float max = logits[static_cast<std::size_t>(best)];
  if (max == kInfinity) return max;
  return max + static_cast<float>(std::log(exp_sum(logits, max, 1.0F)));
}

}  // namespace sluice
