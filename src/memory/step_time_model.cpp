#include "memory/step_time_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace sluice {
namespace {

constexpr std::size_t kTerms = 5;
using Vector = std::array<double, kTerms>;

// A laptop's small model; the first observed steps correct it.
constexpr StepTimeCoefficients kInitial{2e-3, 2e-4, 1e-3, 1e-8, 1e-8};
// Typical sizes of the terms, so that the unknowns are alike.
constexpr Vector kScale{1, 256, 16, 16384, 65536};
constexpr double kPriorWeight = 1e-4;  // steps that the first guess is worth
constexpr double kMemory = 64;         // steps of a kind that count
constexpr double kRecent = 512;        // steps after which a kind counts half,
constexpr double kLeast = 0.1;         // and what it counts for ever, in steps
constexpr double kErrorMemory = 0.98;
constexpr double kBiasMemory = 0.94;
constexpr double kLargestBias = 1;   // that one step adds: a stall is no lasting change
constexpr double kChanged = 0.3;     // from this mean bias on the machine is another one,
constexpr double kForget = 0.9;      // and each step makes all of before count so much
constexpr double kLargestError = 2;  // one step may add to the mean error
constexpr double kLeastSeconds = 1e-6;

Vector features(const StepShape& shape) {
  return {1 / kScale[0], shape.prefill_tokens / kScale[1], shape.decode_sequences / kScale[2],
          static_cast<double>(shape.context_tokens - shape.prefill_context) / kScale[3],
          static_cast<double>(shape.prefill_context) / kScale[4]};
}

// Which power of 2^`bits` it has, 0 for nothing.
std::uint32_t magnitude(std::int64_t value, unsigned bits) {
  const auto width = static_cast<unsigned>(std::bit_width(static_cast<std::uint64_t>(value)));
  return (width + bits - 1) / bits;
}

std::uint32_t key_of(const StepShape& shape) {
  const std::int64_t decode_context = shape.context_tokens - shape.prefill_context;
  const std::int64_t position =
      shape.prefill_tokens > 0 ? shape.prefill_context / shape.prefill_tokens : 0;
  return magnitude(std::max(shape.prefill_tokens, 0), 3) << 24U |
         magnitude(std::max(shape.decode_sequences, 0), 3) << 16U |
         magnitude(std::max<std::int64_t>(decode_context, 0), 5) << 8U |
         magnitude(std::max<std::int64_t>(position, 0), 5);
}

using Square = std::array<Vector, kTerms>;

// Least squares over the `free` coefficients, the others zero; by Cholesky. `a` is
// positive definite, as its prior makes it.
Vector solve(const Square& a, const Vector& rhs, const std::array<bool, kTerms>& free) {
  Square l{};
  Vector x{};
  for (std::size_t i = 0; i < kTerms; ++i) {
    if (!free[i]) continue;
    for (std::size_t j = 0; j <= i; ++j) {
      if (!free[j]) continue;
      double sum = a[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= l[i][k] * l[j][k];
      // Rounding may eat what the prior has added; then the term is taken as known.
      l[i][j] = i == j ? std::sqrt(std::max(sum, 1e-12 * a[i][i])) : sum / l[j][j];
    }
    x[i] = rhs[i];
    for (std::size_t k = 0; k < i; ++k) x[i] -= l[i][k] * x[k];
    x[i] /= l[i][i];
  }
  for (std::size_t i = kTerms; i-- > 0;) {
    if (!free[i]) continue;
    for (std::size_t k = i + 1; k < kTerms; ++k) x[i] -= l[k][i] * x[k];
    x[i] /= l[i][i];
  }
  return x;
}

}  // namespace

double StepTimeCoefficients::seconds(const StepShape& shape) const {
  return base + per_prefill_token * shape.prefill_tokens +
         per_decode_sequence * shape.decode_sequences +
         per_context_token * static_cast<double>(shape.context_tokens - shape.prefill_context) +
         per_prefill_context * static_cast<double>(shape.prefill_context);
}

StepTimeModel::StepTimeModel() : StepTimeModel(kInitial) {}

StepTimeModel::StepTimeModel(StepTimeCoefficients initial)
    : coefficients_(initial),
      prior_{initial.base * kScale[0], initial.per_prefill_token * kScale[1],
             initial.per_decode_sequence * kScale[2], initial.per_context_token * kScale[3],
             initial.per_prefill_context * kScale[4]} {}

Duration StepTimeModel::predict(const StepShape& shape) const {
  return from_seconds(std::max(coefficients_.seconds(shape), kLeastSeconds));
}

StepTimeModel::Kind& StepTimeModel::kind_of(const StepShape& shape) {
  const std::uint32_t key = key_of(shape);
  const auto known = std::find_if(kinds_.begin(), kinds_.end(),
                                  [key](const Kind& kind) { return kind.key == key; });
  if (known != kinds_.end()) return *known;
  kinds_.push_back({.key = key});
  return kinds_.back();
}

void StepTimeModel::observe(const StepShape& shape, Duration took) {
  if (took <= Duration::zero()) return;
  const double seconds = to_seconds(took);
  const double error = std::min(std::abs(to_seconds(predict(shape)) / seconds - 1), kLargestError);
  const double count = static_cast<double>(observations_);
  const double keep = std::min(kErrorMemory, count / (count + 1));
  relative_error_ = keep * relative_error_ + (1 - keep) * error;
  ++observations_;
  if (shape.prefill_tokens > 0) ++prefill_observations_;

  const double bias = std::log(seconds / to_seconds(predict(shape)));
  bias_ = kBiasMemory * bias_ + (1 - kBiasMemory) * std::clamp(bias, -kLargestBias, kLargestBias);
  if (std::abs(bias_) > kChanged) forget();

  // Relative to the time taken: a step of a second weighs as one of a millisecond, and
  // one that the machine has stalled next to nothing.
  Vector x = features(shape);
  for (double& value : x) value /= seconds;
  Kind& kind = kind_of(shape);
  constexpr double kKeep = 1 - 1 / kMemory;
  kind.weight = kKeep * kind.weight + 1;
  kind.last = observations_;
  std::size_t at = 0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = i; j < kTerms; ++j, ++at) {
      kind.sum.square[at] = kKeep * kind.sum.square[at] + x[i] * x[j];
    }
    kind.sum.rhs[i] = kKeep * kind.sum.rhs[i] + x[i];
  }
  fit();
}

// Another process takes its share of the machine, or has ended: all is another speed.
void StepTimeModel::forget() {
  for (Kind& kind : kinds_) {
    kind.weight *= kForget;
    for (double& value : kind.sum.square) value *= kForget;
    for (double& value : kind.sum.rhs) value *= kForget;
  }
  constexpr double kNothing = 1e-6;
  std::erase_if(kinds_, [](const Kind& kind) { return kind.weight < kNothing; });
}

// Least squares over all kinds with the first guess as a prior, and no coefficient
// negative: the most negative is held at zero, and the rest fitted again.
void StepTimeModel::fit() {
  Moments all;
  for (const Kind& kind : kinds_) {
    const double age = static_cast<double>(observations_ - kind.last);
    const double counts =
        std::max(kind.weight * kRecent / (kRecent + age), std::min(kind.weight, kLeast));
    const double share = counts / kind.weight;
    for (std::size_t k = 0; k < all.square.size(); ++k) all.square[k] += share * kind.sum.square[k];
    for (std::size_t i = 0; i < kTerms; ++i) all.rhs[i] += share * kind.sum.rhs[i];
  }
  Square square{};
  std::size_t at = 0;
  for (std::size_t i = 0; i < kTerms; ++i) {
    for (std::size_t j = i; j < kTerms; ++j, ++at) square[i][j] = square[j][i] = all.square[at];
    // Known to about its own size, or to a millisecond if it says nothing.
    const double size = prior_[i] > 0 ? prior_[i] : 1e-3;
    square[i][i] += kPriorWeight / (size * size);
    all.rhs[i] += kPriorWeight / (size * size) * prior_[i];
  }
  std::array<bool, kTerms> free{true, true, true, true, true};
  Vector best = solve(square, all.rhs, free);
  for (std::size_t round = 0; round < kTerms; ++round) {
    const auto worst =
        static_cast<std::size_t>(std::min_element(best.begin(), best.end()) - best.begin());
    if (best[worst] >= 0) break;
    free[worst] = false;
    best = solve(square, all.rhs, free);
  }
  for (double& value : best) value = std::isfinite(value) ? std::max(value, 0.0) : 0.0;
  coefficients_ = {best[0] / kScale[0], best[1] / kScale[1], best[2] / kScale[2],
                   best[3] / kScale[3], best[4] / kScale[4]};
}

}  // namespace sluice
