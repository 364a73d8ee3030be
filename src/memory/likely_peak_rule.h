// The admission rule of windowed memory management: an arrival is admitted if the
// risk that memory falls short with it is worth what admitting it brings.
//
// Risk is the chance that the likely demand of the running set and the arrival
// exceeds the pool at one of the next window ends (WindowPlanner::margin). Where n
// would run, one of them ends every w seconds, and one like them can be put aside
// and taken back for r seconds of device time, the risk may be
//
//   min( w / (w + n r),  0.008 max( 1, (hold_up / (8 w + r))^2 ))
//
// and at most 0.12, or 0.5 for one that has yielded and comes back. First: now instead
// of at the next completion is one row more for w seconds, against n rows that lose r
// if somebody has to yield: the newest, which holds half of the mean. Second: who
// yields waits in the middle of an answer until about eight have ended (measured, 18
// to 216 running). For `hold_up` or more that may happen to 8 in 1,000; the shorter,
// the less it is noticed.
//
// Where more or fewer shortfalls come than were foreseen, the margin moves
// against that, and forgets it within a hundred admissions.
#pragma once

#include "memory/admission_rule.h"

namespace sluice {

class LikelyPeakRule final : public AdmissionRule {
 public:
  // `planner` outlives the rule.
  explicit LikelyPeakRule(const WindowPlanner& planner) : planner_(planner) {}

  [[nodiscard]] bool admits(const Arrival& arrival, const StepTimeModel& step_time,
                            const LengthForecast& forecast) override;
  void opened(const WindowPlan& plan, std::span<const RunningSequence> running) override;
  [[nodiscard]] double z() const override;

 private:
  [[nodiscard]] double tolerable_risk(const Arrival& arrival, const StepTimeModel& step_time,
                                      const LengthForecast& forecast) const;

  const WindowPlanner& planner_;
  double tolerable_ = 0.02;  // for the last arrival
  double surprise_ = 0;      // deviations by which the forecast was too bold lately
};

}  // namespace sluice
