#include "simulation/decode_choice.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "scheduling/load_table.h"

namespace sluice {

Result<DecodeChoice> parse_decode_choice(std::string_view text) {
  DecodeChoice choice;
  const std::size_t slash = std::min(text.find('/'), text.size());
  const std::string_view by = text.substr(0, slash);
  if (by == "central") {
    choice.by = DecodeChooser::kCentral;
  } else if (by == "placement") {
    choice.by = DecodeChooser::kAtPlacement;
  } else if (by != "local") {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" does not begin with local, central or placement", text));
  }
  if (slash < text.size()) choice.policy = text.substr(slash + 1);
  if (make_policy(choice.policy, {}, Rng(1)) == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("no policy \"{}\"; there are {}", choice.policy,
                            fmt::join(policy_names(), ", ")));
  }
  return choice;
}

// A rule that asks somebody else. Where the instance that is named is not known
// here, it is nobody.
class CentralDecode::Asking final : public PlacementPolicy {
 public:
  explicit Asking(CentralDecode& central) : central_(central) {}
  [[nodiscard]] const char* name() const override { return "central"; }
  [[nodiscard]] Decision place(const PlacementQuery& query, const LoadTable& loads) override {
    Decision decision = central_.decide(query);
    if (!decision.placement) return decision;
    const LoadRow* row = loads.find(decision.placement->instance);
    if (row == nullptr || !row->present) {
      decision.placement.reset();
      decision.outcome = PlacementOutcome::kNoneEligible;
    }
    return decision;
  }

 private:
  CentralDecode& central_;
};

std::unique_ptr<PlacementPolicy> CentralDecode::make_policy() {
  return std::make_unique<Asking>(*this);
}

void CentralDecode::choose_early(const Request& request, TimePoint now) {
  const auto known = static_cast<std::int32_t>(request.prompt.size() + request.output.size());
  const auto left = request.max_tokens - static_cast<std::int32_t>(request.output.size());
  early_.erase(request.id);
  const Decision decision = scheduler_.choose({.request = request.id,
                                               .prompt = request.prompt,
                                               .known_tokens = known,
                                               .left_tokens = left,
                                               .refused = nullptr},
                                              now);
  if (decision.placement) early_[request.id] = *decision.placement;
}

// What was chosen early stays chosen as long as that incarnation lives; refused, it is
// asked again.
Decision CentralDecode::decide(const PlacementQuery& query) {
  if (const auto early = early_.find(query.request); early != early_.end()) {
    const Placement& chosen = early->second;
    const LoadRow* row = scheduler_.loads().find(chosen.instance);
    if (row != nullptr && row->present && row->incarnation == chosen.incarnation) {
      Decision decision;
      decision.request = query.request;
      decision.at = query.now;
      decision.role = query.role;
      const bool refused = std::find(query.refused.begin(), query.refused.end(), chosen.instance) !=
                           query.refused.end();
      if (refused) return decision;
      decision.outcome = PlacementOutcome::kPlaced;
      decision.placement = chosen;
      return decision;
    }
  }
  const std::vector<Token> prompt = prompts_(query.request);
  const std::set<InstanceId> refused(query.refused.begin(), query.refused.end());
  return scheduler_.choose({.request = query.request,
                            .prompt = prompt,
                            .known_tokens = query.prompt_tokens,
                            .left_tokens = query.max_new_tokens,
                            .refused = &refused},
                           query.now);
}

}  // namespace sluice
