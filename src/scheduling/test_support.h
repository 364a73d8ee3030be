// Reports for tests and benchmarks of schedulers.
#pragma once

#include <algorithm>

#include "base/rng.h"
#include "scheduling/load_report.h"

namespace sluice {

inline constexpr TimePoint kTestStart{std::chrono::hours(1)};

// An idle instance of 1,000 blocks of 16 tokens, about 1,000 prefill tokens a second.
inline LoadReport idle_report(std::uint32_t instance, std::uint64_t sequence = 1) {
  LoadReport r;
  r.instance = InstanceId{instance};
  r.incarnation = Incarnation{1};
  r.sequence = sequence;
  r.measured_at = kTestStart;
  r.total_blocks = 1000;
  r.free_blocks = 1000;
  r.step = {.base = 0.01,
            .per_prefill_token = 0.001,
            .per_decode_sequence = 0.001,
            .per_context_token = 1e-6,
            .steps = 1000,
            .prefill_steps = 100};
  r.output_quantiles = {10, 100, 300};
  r.max_running = 64;
  return r;
}

// A plausible instance in mid-load; `fill` is the share of memory in use, 0..1.
inline LoadReport random_report(std::uint32_t instance, Rng& rng, double fill) {
  LoadReport r = idle_report(instance);
  r.running_sequences = static_cast<std::int32_t>(rng.below(60));
  r.waiting_requests = rng.below(4) == 0 ? static_cast<std::int32_t>(rng.below(4)) : 0;
  r.waiting_tokens = r.waiting_requests * static_cast<std::int64_t>(200 + rng.below(800));
  r.uncomputed_tokens = r.waiting_tokens + static_cast<std::int64_t>(rng.below(2000));
  const double used = std::min(1.0, fill * (0.8 + 0.4 * rng.uniform()));
  r.free_blocks = static_cast<std::int64_t>(1000 * (1 - used));
  r.granted_blocks = 1000 - r.free_blocks;
  r.context_tokens = r.granted_blocks * 14;
  std::int64_t free = r.free_blocks;
  for (int i = 1; i <= 8; ++i) {
    free = std::clamp<std::int64_t>(free + static_cast<std::int64_t>(rng.below(120)) - 60, 0, 1000);
    r.outlook.push_back({kTestStart + std::chrono::milliseconds(400 * i), 1000 - free, free});
  }
  r.window_end = r.outlook.front().at;
  return r;
}

}  // namespace sluice
