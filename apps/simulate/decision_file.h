// Reads what a server says at /debug/decisions?inputs=1.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "scheduling/decision_inputs.h"

namespace sluice {

struct RecordedDecision {
  std::shared_ptr<const DecisionInputs> inputs;
  std::string request;  // its id as it stands there
  std::string policy;
  std::string by;  // "global", or an instance
  std::optional<InstanceId> chosen;
};

struct DecisionFile {
  std::vector<RecordedDecision> decisions;  // oldest first
  std::size_t without_inputs = 0;  // left out: their inputs were not kept, or not asked for
};

// kInvalidArgument names the place, as in "decisions[3].inputs.loads[0].token_s", and what is
// wrong there.
[[nodiscard]] Result<DecisionFile> parse_decisions(const std::string& path,
                                                   const std::string& text);

}  // namespace sluice
