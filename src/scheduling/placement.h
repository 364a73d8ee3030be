// The choice of an instance, with its reason.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/rng.h"
#include "base/time.h"
#include "scheduling/load_report.h"

namespace sluice {

// One request as a scheduler sees it. Tokens.
struct PlacementQuery {
  RequestId request;
  Role role = Role::kPrefill;              // what is wanted: kPrefill or kDecode; unified does both
  std::int32_t prompt_tokens = 0;
  std::int32_t max_new_tokens = 0;
  std::vector<std::uint64_t> prefix_hashes;   // of its leading blocks, for affinity; may be empty
  TimePoint now{};
};

// An instance's load as used: report and ledger put together.
struct InstanceLoad {
  LoadReport report;
  std::int64_t ledger_tokens = 0;          // prompt tokens sent there that no report has seen
  std::int64_t ledger_blocks = 0;          // likely blocks of those
  std::int32_t ledger_requests = 0;
  Duration age{};                          // of the report, at the time of the query
  std::int32_t cached_tokens = 0;          // of this prompt, believed to be there
};

enum class Rejection : std::uint8_t {
  kNone, kStale, kWrongRole, kDraining, kMemory, kWait, kNeverFits
};
[[nodiscard]] const char* rejection_name(Rejection rejection);

struct Candidate {
  InstanceId instance;
  Rejection rejection = Rejection::kNone;
  double cost = 0;                         // the policy's own unit; least wins
  double predicted_ttft_s = 0;
  Duration report_age{};
};

struct Placement {
  InstanceId instance;
  Incarnation incarnation;                 // the receiver refuses another one
};

enum class PlacementOutcome : std::uint8_t { kPlaced, kPlacedRelaxed, kNoneEligible, kNeverFits };
[[nodiscard]] const char* outcome_name(PlacementOutcome outcome);

// A decision record: inputs, their age, candidates rejected and why.
struct Decision {
  RequestId request;
  TimePoint at{};
  std::string policy;
  PlacementOutcome outcome = PlacementOutcome::kNoneEligible;
  std::optional<Placement> placement;
  std::int32_t prompt_tokens = 0;
  std::int32_t max_new_tokens = 0;
  std::vector<Candidate> candidates;       // in the order of instance ids; at most 64 kept
  Duration expected_wait{};                // when none was eligible: until one may be
  std::int64_t needed_blocks = 0;          // with kNeverFits
  std::int64_t largest_blocks = 0;         // of any instance, with kNeverFits
};

// Chooses the instance that serves a request: a function of a load snapshot; no
// clock, no I/O. The global scheduler uses one to place prefill; a prefill
// instance's local scheduler uses another to place decode (CN119512748A). Equal
// arguments give equal answers, but for tie-breaks drawn from its own Rng.
class PlacementPolicy {
 public:
  virtual ~PlacementPolicy() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  // `loads` is sorted by instance id.
  [[nodiscard]] virtual Decision place(const PlacementQuery& query,
                                       std::span<const InstanceLoad> loads) = 0;
};

struct ForecastPolicyOptions {
  Duration max_report_age = std::chrono::seconds(3);
  Duration max_wait = std::chrono::seconds(30);   // predicted wait above it: not eligible
  double near_tie = 0.05;                         // costs this close are a tie
};

// "Condition, then cost": eligible are instances whose report is fresh, whose
// forecast memory fits the request's own demand and whose predicted wait is
// below the limit; among them the least predicted time to first token.
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_forecast_policy(ForecastPolicyOptions options,
                                                                    Rng rng);
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_round_robin_policy();
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_random_policy(Rng rng);
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_least_outstanding_policy(Rng rng);
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_two_choices_policy(Rng rng);

// By name, for flags; null: no such policy. `names` lists them.
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_policy(const std::string& name, Rng rng);
[[nodiscard]] std::span<const char* const> policy_names();

}  // namespace sluice
