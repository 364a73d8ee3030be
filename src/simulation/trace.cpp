#include "simulation/trace.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "base/rng.h"

namespace sluice {
namespace {

std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15ULL;
  return x ^ (x >> 29);
}

constexpr std::uint64_t kOwnTokens = 0x517cc1b727220a95ULL;

// Tokens of a block: a run that starts where its id says.
void fill(std::vector<Token>& tokens, std::size_t begin, std::size_t end, std::uint64_t id) {
  const auto first = static_cast<std::uint32_t>(mix(id) & 0x3fffffff);
  for (std::size_t i = begin; i < end; ++i) {
    tokens[i] = static_cast<Token>(first + static_cast<std::uint32_t>(i - begin));
  }
}

double normal(Rng& rng) {
  const double radius = std::sqrt(-2 * std::log(1 - rng.uniform()));
  return radius * std::cos(2 * std::numbers::pi * rng.uniform());
}

std::int32_t log_normal(double median, double sigma, Rng& rng) {
  const double value = median * std::exp(sigma * normal(rng));
  return static_cast<std::int32_t>(std::clamp(value, 1.0, 1e6));
}

}  // namespace

std::vector<Token> Trace::prompt(std::size_t request) const {
  const TraceRequest& r = requests[request];
  const auto length = static_cast<std::size_t>(r.prompt_tokens);
  const auto stride = static_cast<std::size_t>(block_tokens);
  std::vector<Token> tokens(length);
  std::size_t at = 0;
  for (std::uint32_t b = 0; b < r.num_blocks && at < length; ++b) {
    const std::size_t end = std::min(at + stride, length);
    fill(tokens, at, end, blocks[r.first_block + b]);
    at = end;
  }
  if (at < length) fill(tokens, at, length, kOwnTokens ^ mix(request + 1));
  return tokens;
}

Duration Trace::span() const {
  Duration last{};
  for (const TraceRequest& r : requests) {
    if (r.after < 0) last = std::max(last, r.arrival);
  }
  return last;
}

std::int32_t Trace::longest_output() const {
  std::int32_t longest = 1;
  for (const TraceRequest& r : requests) longest = std::max(longest, r.output_tokens);
  return longest;
}

void scale_rate(Trace& trace, double factor) {
  for (TraceRequest& r : trace.requests) {
    if (r.after < 0) r.arrival = from_seconds(to_seconds(r.arrival) / factor);
  }
}

void spread_ticks(Trace& trace) {
  auto& all = trace.requests;
  constexpr Duration kFine = std::chrono::milliseconds(500);
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    while (end < all.size() && all[end].arrival == all[begin].arrival) ++end;
    const Duration gap = end < all.size() ? all[end].arrival - all[begin].arrival
                         : begin > 0      ? all[begin].arrival - all[begin - 1].arrival
                                          : Duration::zero();
    // A gap without any request is no tick of the clock: most are as long as the shortest.
    const auto count = static_cast<Duration::rep>(end - begin);
    const Duration spread = std::min<Duration>(gap, std::chrono::seconds(4));
    if (gap >= kFine && count > 1) {
      for (std::size_t i = begin; i < end; ++i) {
        all[i].arrival += spread * static_cast<Duration::rep>(i - begin) / count;
      }
    }
    begin = end;
  }
}

void cut(Trace& trace, Duration begin, Duration end) {
  std::vector<TraceRequest> kept;
  std::vector<std::int32_t> place(trace.requests.size(), -1);
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    TraceRequest r = trace.requests[i];
    if (r.after >= 0) {
      r.after = place[static_cast<std::size_t>(r.after)];
      if (r.after < 0) continue;
    } else {
      if (r.arrival < begin || r.arrival >= end) continue;
      r.arrival -= begin;
    }
    place[i] = static_cast<std::int32_t>(kept.size());
    kept.push_back(r);
  }
  trace.requests = std::move(kept);
}

void limit(Trace& trace, std::size_t requests) {
  if (requests < trace.requests.size()) trace.requests.resize(requests);
}

void put_in_order(Trace& trace) {
  auto& all = trace.requests;
  // When a request could come at the earliest: its leader's time and its own delay.
  std::vector<Duration> earliest(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto leader = static_cast<std::size_t>(std::max(0, all[i].after));
    earliest[i] = all[i].arrival + (all[i].after < 0 ? Duration::zero() : earliest[leader]);
  }
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return earliest[a] < earliest[b]; });
  std::vector<std::int32_t> place(all.size());
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<std::int32_t>(i);
  std::vector<TraceRequest> sorted;
  sorted.reserve(all.size());
  for (const std::size_t i : order) {
    sorted.push_back(all[i]);
    if (sorted.back().after >= 0) {
      sorted.back().after = place[static_cast<std::size_t>(sorted.back().after)];
    }
  }
  all = std::move(sorted);
}

Trace synthesize(const SyntheticTrace& options) {
  Rng rng(options.seed);
  Trace trace;
  trace.name = "synthetic";
  double at = 0;
  for (std::size_t i = 0; i < options.requests; ++i) {
    TraceRequest r;
    at -= std::log(1 - rng.uniform()) / options.rate;
    r.arrival = from_seconds(at);
    r.prompt_tokens = log_normal(options.median_prompt, options.sigma, rng);
    r.output_tokens = log_normal(options.median_output, options.sigma, rng);
    trace.requests.push_back(r);
  }
  return trace;
}

}  // namespace sluice
