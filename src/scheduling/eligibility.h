// What every policy asks of an instance before it compares costs. Internal to
// scheduling/.
#pragma once

#include <optional>

#include "scheduling/load_table.h"
#include "scheduling/placement.h"

namespace sluice {

// Fresh, right role, not draining, large enough, own queue bounded: what does
// not depend on a forecast.
[[nodiscard]] Rejection basic_rejection(const LoadRow& row, const PlacementQuery& query,
                                        const PlacementLimits& limits);

// Tokens of the prompt that an instance is believed to hold.
[[nodiscard]] std::int32_t cached_tokens(const PlacementQuery& query, InstanceId instance);

// What a policy thinks of one instance for one request.
struct Judgement {
  Rejection rejection = Rejection::kNone;
  double ttft_s = 0;     // predicted time to first token
  double cost_s = 0;     // and what others there pay for it
  double room_in_s = 0;  // when rejected for load: until that may change
};

// The forecast's condition and cost. Strict: memory for the request's own demand
// curve is forecast from its start on. Relaxed: or few wait there.
[[nodiscard]] Judgement judge(const LoadRow& row, const PlacementQuery& query,
                              const PlacementLimits& limits, bool relaxed);

// Seconds from `query.now` to the first instant from which on the outlook has
// room for the request's demand curve; nullopt: not within the outlook.
[[nodiscard]] std::optional<double> memory_start(const LoadRow& row, const PlacementQuery& query);

// The most blocks used at any point of the outlook, the request's own growth in
// it, as a share of all; infinite where there are none.
[[nodiscard]] double predicted_peak(const LoadRow& row, const PlacementQuery& query);

// A decision with what is known before the search.
[[nodiscard]] Decision new_decision(const PlacementQuery& query, const char* policy);

// Fills in kNeverFits when no instance known could hold the request with all
// else free; true then.
[[nodiscard]] bool never_fits(const PlacementQuery& query, const LoadTable& loads,
                              Decision& decision);

// The last words of a decision: candidates in order of ids, at most 64.
inline constexpr std::size_t kMaxCandidates = 64;
void place_at(const LoadRow& row, PlacementOutcome outcome, Decision& decision);
void order_candidates(Decision& decision);

}  // namespace sluice
