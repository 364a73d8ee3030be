// Plans KV memory one time window ahead (CN119248522A, CN119248525A/B).
//
// From the predicted data-processing durations of the running set the planner
// derives when the next window ends, how many tokens each sequence could write
// until then, and so how many blocks each must hold. Memory is granted once a
// window instead of once a token; at the window's end the engine plans again.
//
// plan() is const and pure: no clock, no allocation from any pool. The length
// rule, in steps (window_planner.cpp says where each bound comes from):
//
//   upper = min(first likely completion, unused share, max_length, max_steps)
//   steps = min(max(upper, min(max(min_steps, overhead share), max_steps)), capacity)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/hidden_length.h"
#include "memory/length_forecast.h"
#include "memory/step_time_model.h"
#include "memory/window_options.h"

namespace sluice {

// One running sequence as the planner sees it. Tokens.
struct RunningSequence {
  SequenceId id;
  std::int32_t held_tokens = 0;   // KV that exists now
  std::int32_t held_blocks = 0;   // blocks in its table now, shared ones included
  std::int32_t prefill_left = 0;  // known tokens whose KV is still to be computed
  std::int32_t generated = 0;     // output tokens so far: the age for the forecast
  std::int32_t decode_cap = 0;    // at most this many will still be generated
  std::int32_t priority = 0;      // higher is granted first; equal: the earlier in the span
  HiddenLength true_length{};     // benchmarks: for the oracle alone
};

struct Grant {
  SequenceId id;
  std::int32_t until_tokens = 0;  // may hold KV of tokens [0, until_tokens) in this window
  std::int32_t new_blocks = 0;    // beyond those it holds
};

// Which of the bounds fixed the length.
enum class WindowBound : std::uint8_t {
  kCompletion,
  kOverhead,  // or min_steps
  kUnused,
  kCapacity,
  kMaximum,  // max_steps or max_length
  kIdle,
};

// Likely demand at one future window end: what the load report states.
struct Outlook {
  Duration after{};                // from the plan's begin
  std::int64_t demand_blocks = 0;  // of the sequences likely to run then, mean + z x deviation,
                                   // with what their next window needs
};

struct WindowPlan {
  Duration length{};
  std::int32_t steps = 0;          // >= 1; the window ends at its time or when these are used up
  std::vector<Grant> grants;       // in the order of `running`, without the deferred
  std::int64_t demand_blocks = 0;  // sum of Grant::new_blocks: allocated at once
  // Not even one step fits. In the order in which they should yield: lowest
  // priority and latest first, those whose room would let all others run; then
  // those that only wait for that room.
  std::vector<SequenceId> deferred;
  WindowBound bound = WindowBound::kIdle;
  std::vector<Outlook> outlook;  // this window's end first, then later ones, further and further
  std::int64_t peak_blocks = 0;  // likely peak over the outlook, tables included
};

struct PlanInput {
  std::span<const RunningSequence> running;  // in the order of admission
  std::int64_t free_blocks = 0;              // free now, unused prefix blocks included
  std::int64_t total_blocks = 0;
  Duration planning_cost{};        // what planning and mapping took lately
  std::int64_t shared_blocks = 0;  // counted more than once in held_blocks
  double extra_z = 0;              // deviations beyond options().z
  std::int32_t least_steps = 1;    // somebody yields unless so many fit
};

struct OutlookInput {
  std::span<const RunningSequence> running;
  const RunningSequence* arrival = nullptr;  // one more, or none
  std::int32_t first_steps = 0;              // to this window's end
  std::int32_t window_steps = 1;             // of those after it
  std::int64_t shared_blocks = 0;
  double extra_z = 0;
};

class WindowPlanner final {
 public:
  static constexpr std::size_t kMostPoints = 8;  // of an outlook

  explicit WindowPlanner(WindowOptions options);

  // Ensures: demand_blocks <= free_blocks; every running id is granted or
  // deferred, never both; a granted sequence has room for all that it could
  // write in `steps` steps; nothing is deferred unless one step of all does not fit.
  [[nodiscard]] WindowPlan plan(const PlanInput& input, const StepTimeModel& step_time,
                                const LengthForecast& forecast) const;

  // Most tokens that a sequence is granted for `steps` steps: at least all that
  // it could write in them, whatever else runs.
  [[nodiscard]] std::int32_t writable_tokens(const RunningSequence& sequence,
                                             std::int32_t steps) const;

  // Likely demand at window ends from here on: no arrivals but the one given.
  [[nodiscard]] std::vector<Outlook> outlook(const OutlookInput& input,
                                             const StepTimeModel& step_time,
                                             const LengthForecast& forecast) const;

  [[nodiscard]] std::int32_t blocks_for(std::int64_t tokens) const;
  [[nodiscard]] const WindowOptions& options() const { return options_; }

 private:
  struct Batch;
  struct Length;
  [[nodiscard]] Batch summarize(std::span<const RunningSequence> running) const;
  [[nodiscard]] std::int32_t likely_completion(const PlanInput& input,
                                               const LengthForecast& forecast,
                                               std::int32_t enough) const;
  [[nodiscard]] std::int32_t remaining_steps(const PlanInput& input,
                                             const LengthForecast& forecast) const;
  [[nodiscard]] Duration duration(const Batch& batch, std::int32_t steps,
                                  const StepTimeModel& step_time) const;
  [[nodiscard]] Length choose_length(const PlanInput& input, const Batch& batch,
                                     const StepTimeModel& step_time,
                                     const LengthForecast& forecast) const;
  [[nodiscard]] Length bounded_length(const PlanInput& input, const Batch& batch,
                                      const StepTimeModel& step_time,
                                      const LengthForecast& forecast) const;
  [[nodiscard]] std::int32_t new_blocks(const RunningSequence& sequence, std::int32_t steps) const;
  [[nodiscard]] std::int64_t demand(std::span<const RunningSequence> running,
                                    std::int32_t steps) const;
  void grant_all(const PlanInput& input, WindowPlan& plan) const;
  void grant_some(const PlanInput& input, WindowPlan& plan) const;

  const WindowOptions options_;
  const std::int32_t block_shift_;  // log2 of block_tokens, or -1
};

}  // namespace sluice
