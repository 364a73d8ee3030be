#include "memory/likely_peak_rule.h"

#include <algorithm>

#include "memory/likely_demand.h"

namespace sluice {
namespace {

constexpr double kCompletionsToReturn = 8;
constexpr double kFew = 0.008;       // of the requests
constexpr double kLeastRisk = 1e-4;  // no forecast of tails is better than that
// One shortfall is foreseen by several arrivals, and their risks count it several times: beyond
// this more time was lost than won in every simulated shortage (`bench/memory_pressure`). Who
// has yielded waits in the middle of an answer, and may come back as soon as it is likely to stay.
constexpr double kMostRisk = 0.12;
constexpr double kMostRiskToGoOn = 0.5;

constexpr double kAlarm = 0.05;  // deviations that a shortfall adds; one foreseen takes as much off
constexpr double kMemory = 0.99;  // what an admission leaves of them
constexpr double kLeastSurprise = -1;
constexpr double kMostSurprise = 2;

// Device time for putting such a sequence aside and taking it back: its tokens are
// computed anew in steps that run anyway, or its blocks copied out and in.
double yield_seconds(std::int64_t tokens, std::int64_t blocks, const StepTimeCoefficients& step,
                     const std::optional<Duration>& block_pause) {
  const StepShape prefill{.prefill_tokens = static_cast<std::int32_t>(tokens),
                          .context_tokens = tokens * (tokens + 1) / 2,
                          .prefill_context = tokens * (tokens + 1) / 2};
  const double recompute = step.seconds(prefill) - step.base;
  if (!block_pause) return recompute;
  return std::min(recompute, to_seconds(*block_pause) * static_cast<double>(blocks));
}

}  // namespace

double LikelyPeakRule::tolerable_risk(const Arrival& arrival, const StepTimeModel& step_time,
                                      const LengthForecast& forecast) const {
  const auto n = static_cast<std::int64_t>(arrival.running.size() + 1);
  std::int64_t context = arrival.sequence.held_tokens + arrival.sequence.prefill_left;
  for (const RunningSequence& sequence : arrival.running) context += sequence.held_tokens;
  const StepShape decode{.decode_sequences = static_cast<std::int32_t>(n),
                         .context_tokens = context};
  const double rows = static_cast<double>(n);
  const double lifetime = std::max(forecast.mean(0, LengthForecast::kLimit), 1.0);
  const double w = to_seconds(step_time.predict(decode)) * lifetime / rows;
  const std::int64_t newest = context / (2 * n);
  const double r = yield_seconds(newest, planner_.blocks_for(newest), step_time.coefficients(),
                                 arrival.block_pause);
  const double worth = w / (w + rows * r);
  const double shorter = to_seconds(planner_.options().hold_up) / (kCompletionsToReturn * w + r);
  const double bearable = kFew * std::max(shorter * shorter, 1.0);
  const double most = arrival.sequence.generated > 0 ? kMostRiskToGoOn : kMostRisk;
  return std::clamp(std::min(worth, bearable), kLeastRisk, most);
}

bool LikelyPeakRule::admits(const Arrival& arrival, const StepTimeModel& step_time,
                            const LengthForecast& forecast) {
  tolerable_ = tolerable_risk(arrival, step_time, forecast);
  const double margin = planner_.margin({.running = arrival.running,
                                         .arrival = &arrival.sequence,
                                         .first_steps = arrival.steps_left,
                                         .window_steps = arrival.window_steps,
                                         .shared_blocks = arrival.shared_blocks},
                                        arrival.total_blocks, forecast);
  const double risk = upper_tail(margin - surprise_);
  if (risk > tolerable_) return false;
  surprise_ = std::max(surprise_ * kMemory - kAlarm * risk, kLeastSurprise);
  return true;
}

void LikelyPeakRule::opened(const WindowPlan& plan, std::span<const RunningSequence> /*running*/) {
  if (!plan.deferred.empty()) surprise_ = std::min(surprise_ + kAlarm, kMostSurprise);
}

double LikelyPeakRule::z() const {
  return deviations_for(tolerable_) + surprise_;
}

}  // namespace sluice
