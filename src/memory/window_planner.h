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

#include "base/time.h"
#include "memory/length_forecast.h"
#include "memory/step_time_model.h"
#include "memory/window_options.h"
#include "memory/window_plan.h"

namespace sluice {

class WindowPlanner final {
 public:
  static constexpr std::size_t kMostPoints = 8;  // of an outlook

  explicit WindowPlanner(WindowOptions options);

  // Room for arrivals is left where that costs no more than window length. Ensures: demand_blocks +
  // room_blocks = free_blocks, neither < 0; every running id is granted or deferred, never both; a
  // granted sequence has room for all that it could write in `steps` steps; nothing is deferred
  // unless one step of all does not fit.
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

  // The least deviations, over the points of the outlook, by which `blocks` are
  // above the mean of what is likely: how safe it is that the set stays within them.
  [[nodiscard]] double margin(const OutlookInput& input, std::int64_t blocks,
                              const LengthForecast& forecast) const;

  [[nodiscard]] std::int32_t blocks_for(std::int64_t tokens) const;
  [[nodiscard]] const WindowOptions& options() const { return options_; }

 private:
  struct Batch;
  struct Length;
  class Demand;
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
  void choose_steps(const PlanInput& input, const Batch& batch, const StepTimeModel& step_time,
                    const LengthForecast& forecast, WindowPlan& plan) const;
  void grant_all(const PlanInput& input, WindowPlan& plan) const;
  void grant_some(const PlanInput& input, WindowPlan& plan) const;

  const WindowOptions options_;
  const std::int32_t block_shift_;  // log2 of block_tokens, or -1
};

}  // namespace sluice
