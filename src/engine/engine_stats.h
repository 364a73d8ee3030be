// Load, counters and present state of one engine, copied out for metrics, the debug
// endpoints and the page. Plain values; the engine is the only writer.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/kv_manager.h"
#include "memory/step_time_model.h"

namespace sluice {

// A histogram with fixed upper bounds; counts are not cumulated.
template <std::size_t N>
struct FixedHistogram {
  std::array<double, N> bounds{};  // ascending; above the last: counts[N]
  std::array<std::int64_t, N + 1> counts{};
  double sum = 0;

  void observe(double value) {
    std::size_t i = 0;
    while (i < N && value > bounds[i]) ++i;
    ++counts[i];
    sum += value;
  }
};

// One running sequence, for /debug/memory and the page.
struct SequenceView {
  SequenceId id;
  RequestId request;
  std::int32_t prompt_tokens = 0;
  std::int32_t generated = 0;
  std::int32_t max_tokens = 0;
  std::int32_t held_tokens = 0;
  std::int32_t held_blocks = 0;
  std::int32_t granted_tokens = 0;
};

struct WindowStats {
  std::int64_t windows = 0;  // opened
  std::int64_t ended = 0;    // that ran a step and were not renewed early
  std::int64_t early_renewals = 0;
  double seconds_sum = 0;               // of the windows that ended
  std::int64_t demand_blocks = 0;       // of the present window
  std::int64_t granted_blocks = 0;      // by the present window's plan and its admissions
  std::int64_t unused_blocks_sum = 0;   // granted but not written, at window ends
  std::int64_t granted_blocks_sum = 0;  // held at window ends
  double planning_seconds_sum = 0;
  std::int64_t shortfall_prefixes = 0;   // remedies: prefix blocks dropped,
  std::int64_t shortfall_shortened = 0;  //   windows shortened,
  std::int64_t shortfall_admission = 0;  //   admissions refused,
  std::int64_t shortfall_move = 0;       //   sequences moved to another instance,
  std::int64_t shortfall_pause = 0;      //   paused in host memory,
  std::int64_t shortfall_recompute = 0;  //   restarted
};

// KV of paused sequences in host memory.
struct HostKvStats {
  std::int32_t total_blocks = 0;  // 0: pausing is off
  std::int32_t used_blocks = 0;
  std::int32_t paused_sequences = 0;
  std::int64_t resumed = 0;
  double block_copy_seconds = 0;  // measured
};

struct SpeculationStats {
  std::int64_t drafts = 0;           // rows of a step that had guesses after them,
  std::int64_t draft_tokens = 0;     //   these guesses,
  std::int64_t accepted_tokens = 0;  //   and those that were what was drawn
};

struct EngineStats {
  KvStats kv;
  HostKvStats host;
  Window window;
  WindowStats windows;
  std::vector<SequenceView> running;

  std::int64_t steps = 0;
  std::int64_t prompt_tokens = 0;         // of admitted requests
  std::int64_t cached_prompt_tokens = 0;  // of these, from the prefix cache
  std::int64_t computed_prefill_tokens = 0;
  std::int64_t generated_tokens = 0;
  std::int64_t preemptions = 0;
  SpeculationStats speculation;
  std::array<std::int64_t, 5> finished{};  // by FinishReason
  double forecast_error_tokens = 0;
  double step_time_error = 0;
  double busy_seconds = 0;  // spent in steps
  FixedHistogram<12> step_tokens{{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048}, {}, 0};
  FixedHistogram<12> step_seconds{
      {0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5}, {}, 0};
};

// What a load report is made of; cheap to take.
struct EngineLoad {
  std::int32_t waiting_requests = 0;
  std::int64_t waiting_tokens = 0;     // known tokens of the waiting
  std::int64_t uncomputed_tokens = 0;  // waiting and running
  std::int32_t running_sequences = 0;
  std::int64_t context_tokens = 0;  // KV held by the running set
  KvStats kv;
  std::int64_t window_number = 0;
  TimePoint window_begin{};
  TimePoint window_end{};
  std::vector<Outlook> outlook;  // of the present window's plan
  StepTimeCoefficients step;
  std::int64_t steps_observed = 0;  // that the coefficients were fitted to
  std::int64_t prefill_steps_observed = 0;
  std::array<std::int32_t, 3> output_quantiles{};  // p10, p50, p90
};

}  // namespace sluice
