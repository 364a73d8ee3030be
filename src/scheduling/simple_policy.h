// The common shape of rules that look at no forecast: who is eligible at all, then
// which row, then the record. Internal to scheduling/.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "scheduling/eligibility.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"

namespace sluice {

[[nodiscard]] inline Candidate candidate_of(const LoadRow& row, const PlacementQuery& query,
                                            Rejection rejection, double cost) {
  return {.instance = row.instance,
          .rejection = rejection,
          .cost = cost,
          .predicted_ttft_s = row.wait_s + query.prompt_tokens * row.token_s,
          .report_age = query.now - row.received_at};
}

class SimplePolicy : public PlacementPolicy {
 public:
  explicit SimplePolicy(PlacementLimits limits, Rng rng = Rng(0))
      : PlacementPolicy(rng), limits_(limits) {}

  [[nodiscard]] Decision place(const PlacementQuery& query, const LoadTable& loads) final {
    Decision decision = new_decision(query, name());
    if (never_fits(query, loads, decision)) return decision;
    if (const auto row = choose(query, loads.rows(), decision)) {
      place_at(loads.rows()[*row], PlacementOutcome::kPlaced, decision);
    } else {
      decision.outcome = PlacementOutcome::kNoneEligible;
      decision.expected_wait = std::chrono::seconds(1);  // these rules forecast nothing
    }
    order_candidates(decision);
    return decision;
  }

 protected:
  using Rows = std::span<const LoadRow>;
  virtual std::optional<std::size_t> choose(const PlacementQuery& query, Rows rows,
                                            Decision& decision) = 0;

  // Judges a row and puts it into the record, while there is room.
  bool eligible(const PlacementQuery& query, const LoadRow& row, double cost,
                Decision& decision) const {
    const Rejection rejection = basic_rejection(row, query, limits_);
    if (row.present && decision.candidates.size() <= kMaxCandidates) {
      decision.candidates.push_back(candidate_of(row, query, rejection, cost));
    }
    return rejection == Rejection::kNone;
  }
  // The first eligible row at or after `from`, round the table.
  std::optional<std::size_t> first_eligible(const PlacementQuery& query, Rows rows,
                                            std::size_t from, Decision& decision) const {
    for (std::size_t k = 0; k < rows.size(); ++k) {
      const std::size_t i = (from + k) % rows.size();
      if (!eligible(query, rows[i], 0, decision)) continue;
      if (decision.candidates.back().instance != rows[i].instance) {
        decision.candidates.back() = candidate_of(rows[i], query, Rejection::kNone, 0);
      }
      return i;
    }
    return std::nullopt;
  }

 private:
  const PlacementLimits limits_;
};

}  // namespace sluice
