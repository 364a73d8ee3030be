// A device profile out of measured steps: the inverse of DeviceProfile::seconds().
//
// Least squares of relative errors, since a step of 2 ms matters as much as one of 200; no
// coefficient is below 0, for no work takes less than no time. What every step costs (step_s)
// and what a prefill token costs beside a batch's other tokens (prefill_token_s) stay 0: the
// tables hold both.
#pragma once

#include <span>

#include "simulation/device.h"

namespace sluice {

struct MeasuredStep {
  StepWork work;
  double seconds = 0;
};

struct ProfileFit {
  DeviceProfile profile;
  // |fitted / measured - 1| over the steps.
  double median_error = 0;
  double p90_error = 0;
};

// `shape` gives the name, the memory, and the points of the tables. kInvalidArgument: too few
// steps for so many coefficients, or a step that took no time.
[[nodiscard]] Result<ProfileFit> fit_profile(DeviceProfile shape,
                                             std::span<const MeasuredStep> steps);

}  // namespace sluice
