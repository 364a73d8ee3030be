#include "scheduling/placement.h"

#include <array>

namespace sluice {

const char* role_name(Role role) {
  switch (role) {
    case Role::kUnified: return "unified";
    case Role::kPrefill: return "prefill";
    case Role::kDecode: return "decode";
  }
  return "unknown";
}

const char* rejection_name(Rejection rejection) {
  switch (rejection) {
    case Rejection::kNone: return "none";
    case Rejection::kStale: return "stale";
    case Rejection::kWrongRole: return "wrong_role";
    case Rejection::kDraining: return "draining";
    case Rejection::kMemory: return "memory";
    case Rejection::kWait: return "wait";
    case Rejection::kNeverFits: return "never_fits";
    case Rejection::kRefused: return "refused";
  }
  return "unknown";
}

const char* outcome_name(PlacementOutcome outcome) {
  switch (outcome) {
    case PlacementOutcome::kPlaced: return "placed";
    case PlacementOutcome::kPlacedRelaxed: return "placed_relaxed";
    case PlacementOutcome::kNoneEligible: return "none_eligible";
    case PlacementOutcome::kNeverFits: return "never_fits";
  }
  return "unknown";
}

namespace {
constexpr std::array<const char*, 14> kPolicyNames = {
    "forecast",    "least-peak",      "round-robin", "random",   "least-outstanding",
    "two-choices", "prefix-affinity", "vllm-dp",     "llm-d",    "dynamo",
    "lmetric",     "mooncake",        "llumnix",     "polyserve"};
}  // namespace

std::span<const char* const> policy_names() {
  return kPolicyNames;
}

std::unique_ptr<PlacementPolicy> make_policy(std::string_view name, PlacementLimits limits,
                                             Rng rng) {
  if (name == "forecast") return make_forecast_policy(limits, rng);
  if (name == "least-peak") return make_peak_policy(limits, rng);
  if (name == "round-robin") return make_round_robin_policy(limits);
  if (name == "random") return make_random_policy(limits, rng);
  if (name == "least-outstanding") return make_least_outstanding_policy(limits, rng);
  if (name == "two-choices") return make_two_choices_policy(limits, rng);
  return make_published_policy(name, limits, rng);
}

}  // namespace sluice
