// Plans KV memory one time window ahead (CN119248522A, CN119248525A/B).
//
// From the predicted data-processing durations of the running set the planner
// derives when the next window ends, how many tokens each sequence could write
// until then, and so how many blocks each must hold. Memory is granted once a
// window instead of once a token; at the window's end the engine plans again.
//
// plan() is const and pure: no clock, no allocation from any pool.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/length_forecast.h"
#include "memory/step_time_model.h"

namespace sluice {

// One running sequence as the planner sees it. Tokens.
struct RunningSequence {
  SequenceId id;
  std::int32_t held_tokens = 0;       // KV that exists now
  std::int32_t held_blocks = 0;       // blocks in its table now, shared ones included
  std::int32_t prefill_left = 0;      // known tokens whose KV is still to be computed
  std::int32_t generated = 0;         // output tokens so far: the age for the forecast
  std::int32_t decode_cap = 0;        // at most this many will still be generated
  std::int32_t priority = 0;          // higher is granted first; equal: the earlier in the span
};

struct Grant {
  SequenceId id;
  std::int32_t until_tokens = 0;      // may hold KV of tokens [0, until_tokens) in this window
  std::int32_t new_blocks = 0;        // beyond those it holds
};

// Which of the bounds fixed the length.
enum class WindowBound : std::uint8_t { kCompletion, kOverhead, kUnused, kCapacity, kMaximum, kIdle };

// Likely demand at one future window end: what the load report states.
struct Outlook {
  Duration after{};                   // from the plan's begin
  std::int64_t demand_blocks = 0;     // of the sequences likely to run then, mean + z x deviation
};

struct WindowPlan {
  Duration length{};
  std::int32_t steps = 0;             // >= 1; the window ends at its time or when these are used up
  std::vector<Grant> grants;          // in the order of `running`, without the deferred
  std::int64_t demand_blocks = 0;     // sum of Grant::new_blocks: allocated at once
  std::vector<SequenceId> deferred;   // not even one step fits: lowest priority, latest first
  WindowBound bound = WindowBound::kIdle;
  std::vector<Outlook> outlook;       // this window's end first, then the next ones
  std::int64_t peak_blocks = 0;       // likely peak over the outlook, tables included
};

struct WindowOptions {
  std::int32_t block_tokens = 16;
  std::int32_t step_token_budget = 512;       // most tokens a step computes
  std::int32_t min_steps = 8;
  std::int32_t max_steps = 64;
  Duration max_length = std::chrono::seconds(5);
  double completion_quantile = 0.1;   // "likely": a completion's duration at this quantile
  double overhead_share = 0.005;      // planning and mapping may take this share of the window
  double unused_share = 0.03;         // blocks granted but not yet written, of the pool
  double z = 1.3;                     // deviations that the outlook adds to the mean
  std::int32_t outlook_windows = 8;
};

struct PlanInput {
  std::span<const RunningSequence> running;   // in the order of admission
  std::int64_t free_blocks = 0;               // free now, unused prefix blocks included
  std::int64_t total_blocks = 0;
  Duration planning_cost{};                   // what planning and mapping took lately
};

class WindowPlanner final {
 public:
  explicit WindowPlanner(WindowOptions options);

  // Ensures: demand_blocks <= free_blocks; every running id is granted or
  // deferred, never both; a granted sequence has room for all that it could
  // write in `steps` steps; if anything runs, either something is granted or
  // all is deferred because the pool cannot hold one step of one sequence.
  [[nodiscard]] WindowPlan plan(const PlanInput& input, const StepTimeModel& step_time,
                                const LengthForecast& forecast) const;

  // Most tokens that a sequence could write in `steps` steps.
  [[nodiscard]] std::int32_t writable_tokens(const RunningSequence& sequence,
                                             std::int32_t steps) const;

  [[nodiscard]] const WindowOptions& options() const { return options_; }

 private:
  const WindowOptions options_;
};

}  // namespace sluice
