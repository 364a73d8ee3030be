#include "engine/remedy.h"

#include "base/check.h"

namespace sluice {

Remedy cheapest(const RemedyCosts& costs) {
  return costs.pause && *costs.pause <= costs.recompute ? Remedy::kPause : Remedy::kRecompute;
}

Duration recompute_cost(const StepTimeModel& step_time, std::int32_t tokens,
                        std::int32_t step_tokens) {
  CHECK_GT(step_tokens, 0);
  const std::int64_t steps = (tokens + step_tokens - 1) / step_tokens;
  // Token i reads i + 1 tokens of context.
  const std::int64_t context = std::int64_t{tokens} * (tokens + std::int64_t{1}) / 2;
  const StepShape all{
      .prefill_tokens = tokens, .context_tokens = context, .prefill_context = context};
  const StepTimeCoefficients& c = step_time.coefficients();
  return from_seconds(c.seconds(all) + c.base * static_cast<double>(steps - 1));
}

}  // namespace sluice
