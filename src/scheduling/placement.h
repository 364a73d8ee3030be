// The choice of an instance, with its reason.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/rng.h"
#include "base/time.h"
#include "scheduling/load_report.h"

namespace sluice {

class LoadTable;
struct DecisionInputs;

// Tokens of a prompt that an instance is believed to hold as a prefix.
struct CachedPrefix {
  InstanceId instance;
  std::int32_t tokens = 0;
};

// One request as a scheduler sees it. Tokens.
struct PlacementQuery {
  RequestId request;
  Role role = Role::kPrefill;  // what is wanted: kPrefill or kDecode; unified does both
  std::int32_t prompt_tokens = 0;
  std::int32_t max_new_tokens = 0;
  std::vector<CachedPrefix> cached;  // few; instances not named hold nothing of it
  std::vector<InstanceId> refused;   // few; these have said no to it
  TimePoint now{};
};

enum class Rejection : std::uint8_t {
  kNone,
  kStale,
  kWrongRole,
  kDraining,
  kMemory,
  kWait,
  kNeverFits,
  kRefused,
};
[[nodiscard]] const char* rejection_name(Rejection rejection);

struct Candidate {
  InstanceId instance;
  Rejection rejection = Rejection::kNone;
  double cost = 0;  // the policy's own unit; least wins
  double predicted_ttft_s = 0;
  Duration report_age{};
};

struct Placement {
  InstanceId instance;
  Incarnation incarnation;  // the receiver refuses another one
  friend bool operator==(const Placement&, const Placement&) = default;
};

enum class PlacementOutcome : std::uint8_t { kPlaced, kPlacedRelaxed, kNoneEligible, kNeverFits };
[[nodiscard]] const char* outcome_name(PlacementOutcome outcome);

// A decision record: inputs, their age, candidates rejected and why.
struct Decision {
  RequestId request;
  TimePoint at{};
  Role role = Role::kPrefill;    // what was looked for
  std::optional<InstanceId> by;  // whose local scheduler; none: the global one
  std::string policy;
  PlacementOutcome outcome = PlacementOutcome::kNoneEligible;
  std::optional<Placement> placement;
  std::int32_t prompt_tokens = 0;
  std::int32_t max_new_tokens = 0;
  std::vector<Candidate> candidates;             // in the order of instance ids; at most 64 kept
  Duration expected_wait{};                      // when none was eligible: until one may be
  std::int64_t needed_blocks = 0;                // with kNeverFits
  std::int64_t largest_blocks = 0;               // of any instance, with kNeverFits
  std::shared_ptr<const DecisionInputs> inputs;  // null: not kept
};

// Chooses the instance that serves a request: a function of a load snapshot; no
// clock, no I/O. The global scheduler uses one to place prefill; a prefill
// instance's local scheduler uses another to place decode (CN119512748A). Equal
// arguments give equal answers, but for tie-breaks drawn from its own Rng.
class PlacementPolicy {
 public:
  struct State {  // all that a choice depends on beside the arguments
    Rng rng{0};
    std::uint64_t turn = 0;  // of rules that go round
  };
  PlacementPolicy() = default;
  explicit PlacementPolicy(Rng rng) : state_{rng, 0} {}
  virtual ~PlacementPolicy() = default;
  [[nodiscard]] virtual const char* name() const = 0;
  [[nodiscard]] virtual Decision place(const PlacementQuery& query, const LoadTable& loads) = 0;
  [[nodiscard]] const State& state() const { return state_; }
  void resume(const State& state) { state_ = state; }

 protected:
  State state_;
};

// What every policy asks before it compares; who was not heard of lately is not eligible.
struct PlacementLimits {
  Duration max_report_age = std::chrono::seconds(3);
  Duration max_wait = std::chrono::seconds(30);  // predicted wait above it: not eligible
  std::int32_t max_waiting = 64;                 // requests that may wait at one instance
  std::int32_t relaxed_waiting = 2;              // in the forecast's relaxed pass
  double near_tie = 0.05;                        // costs this close are a tie
  std::int32_t max_judged = 8;                   // instances looked at closely, of more than 64
  std::int32_t max_visits = 128;                 // nodes of the index looked at, in a pass
};

// "Condition, then cost": eligible are instances whose report is fresh, whose
// forecast memory fits the request's own demand curve and whose predicted wait is
// below the limit; among them the least predicted time to first token. The
// relaxed pass lets a request wait for memory at an instance whose own queue is
// short, so that what gets free there is used at the next step.
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_forecast_policy(PlacementLimits limits,
                                                                    Rng rng);
// For decode: the same condition without a wait; among the eligible the least
// predicted peak of KV memory with the request in it, as a share of the instance's
// blocks. None eligible: whoever has a slot; the instance itself has the last word.
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_peak_policy(PlacementLimits limits, Rng rng);
// What others do; fresh, right role, not draining and a bounded queue, then the
// rule. They look at no forecast.
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_round_robin_policy(PlacementLimits limits);
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_random_policy(PlacementLimits limits, Rng rng);
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_least_outstanding_policy(PlacementLimits limits,
                                                                             Rng rng);
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_two_choices_policy(PlacementLimits limits,
                                                                       Rng rng);

// The rules that other systems publish, over the same load table and ledger: see
// published_policies.cpp. Null: none has this name.
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_published_policy(std::string_view name,
                                                                     PlacementLimits limits,
                                                                     Rng rng);

// By name, for flags; null: no such policy. policy_names() lists them.
[[nodiscard]] std::unique_ptr<PlacementPolicy> make_policy(std::string_view name,
                                                           PlacementLimits limits, Rng rng);
[[nodiscard]] std::span<const char* const> policy_names();

}  // namespace sluice
