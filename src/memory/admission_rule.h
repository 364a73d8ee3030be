// Under which condition a request joins the running set, apart from what it
// needs at once: that its grant for the present window fits is the manager's
// business and the same for all rules.
//
// A rule is asked with values and answers; it holds no block and evicts nobody.
// Belongs to the engine's loop, through KvManager. Equal histories give equal
// answers: what a rule draws by chance comes from the seed that it was given.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "memory/length_forecast.h"
#include "memory/memory_policy.h"
#include "memory/step_time_model.h"
#include "memory/window_planner.h"

namespace sluice {

// A request that asks to join, and what it finds. Blocks.
struct Arrival {
  const RunningSequence& sequence;  // as it will run; held_tokens: the prefix that it found
  std::span<const RunningSequence> running;  // not empty
  std::int64_t new_blocks = 0;               // its grant for the present window
  std::int64_t room_blocks = 0;              // free, with unused prefixes, without what it matched
  std::int64_t total_blocks = 0;
  std::optional<Duration> block_pause;  // of it, see AdmissionRequest
  std::int64_t shared_blocks = 0;       // counted more than once in the sequences' tokens
  std::int32_t steps_left = 1;          // of the present window
  std::int32_t window_steps = 1;        // in all
};

class AdmissionRule {
 public:
  virtual ~AdmissionRule() = default;

  [[nodiscard]] virtual bool admits(const Arrival& arrival, const StepTimeModel& step_time,
                                    const LengthForecast& forecast) = 0;

  // A window was opened for `running`; `plan` says whether somebody had to yield.
  virtual void opened(const WindowPlan& plan, std::span<const RunningSequence> running) = 0;

  // Deviations from the mean that the outlook of plans is to state.
  [[nodiscard]] virtual double z() const { return 1.3; }
};

// `planner` outlives the rule.
[[nodiscard]] std::unique_ptr<AdmissionRule> make_admission_rule(MemoryPolicy policy,
                                                                 const WindowPlanner& planner,
                                                                 std::uint64_t seed);

}  // namespace sluice
