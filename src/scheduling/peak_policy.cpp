// Least predicted peak: what a prefill instance's local scheduler places decode
// by (CN119512748A). A sequence that comes to decode brings its KV with it, so
// what counts is the memory that the instance will need, not a prompt's wait.
#include <algorithm>
#include <limits>
#include <vector>

#include "scheduling/eligibility.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"

namespace sluice {
namespace {

class PeakPolicy final : public PlacementPolicy {
 public:
  PeakPolicy(PlacementLimits limits, Rng rng) : PlacementPolicy(rng), limits_(limits) {}

  [[nodiscard]] const char* name() const override { return "least-peak"; }

  [[nodiscard]] Decision place(const PlacementQuery& query, const LoadTable& loads) override {
    Decision decision = new_decision(query, name());
    if (never_fits(query, loads, decision)) return decision;
    double room_in_s = std::numeric_limits<double>::infinity();
    std::vector<Found> fits;
    std::vector<Found> may_fit;
    for (const LoadRow& row : loads.rows()) {
      if (row.present) judge_row(row, query, fits, may_fit, room_in_s, decision);
    }
    if (const LoadRow* row = least(fits)) {
      place_at(*row, PlacementOutcome::kPlaced, decision);
    } else if (const LoadRow* other = least(may_fit)) {
      place_at(*other, PlacementOutcome::kPlacedRelaxed, decision);
    } else {
      constexpr double kUnknown = 1.0;  // nobody was heard of: look again in a second
      decision.expected_wait =
          from_seconds(room_in_s < std::numeric_limits<double>::infinity() ? room_in_s : kUnknown);
    }
    order_candidates(decision);
    return decision;
  }

 private:
  struct Found {
    const LoadRow* row = nullptr;
    double peak = 0;
  };

  void judge_row(const LoadRow& row, const PlacementQuery& query, std::vector<Found>& fits,
                 std::vector<Found>& may_fit, double& room_in_s, Decision& decision) const {
    Rejection rejection = basic_rejection(row, query, limits_);
    const double peak = predicted_peak(row, query);
    if (rejection == Rejection::kNone && !row.has_slot()) rejection = Rejection::kWait;
    if (rejection == Rejection::kNone) {
      const std::optional<double> start = memory_start(row, query);
      if (row.idle() || (start && *start <= 0)) {
        fits.push_back({&row, peak});
      } else {
        may_fit.push_back({&row, peak});
        rejection = Rejection::kMemory;
      }
    }
    if (rejection == Rejection::kWait || rejection == Rejection::kRefused) {
      const double age = to_seconds(query.now - row.received_at);
      room_in_s = std::min(room_in_s, std::max(0.0, row.window_end_s - age));
    }
    if (decision.candidates.size() < kMaxCandidates || rejection == Rejection::kNone) {
      decision.candidates.push_back({.instance = row.instance,
                                     .rejection = rejection,
                                     .cost = peak,
                                     .report_age = query.now - row.received_at});
    }
  }

  // One of the least, at random among near ties.
  const LoadRow* least(std::vector<Found>& found) {
    if (found.empty()) return nullptr;
    double best = found.front().peak;
    for (const Found& f : found) best = std::min(best, f.peak);
    const double limit = best * (1 + limits_.near_tie);
    std::erase_if(found, [limit](const Found& f) { return f.peak > limit; });
    return found[state_.rng.below(found.size())].row;
  }

  const PlacementLimits limits_;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_peak_policy(PlacementLimits limits, Rng rng) {
  return std::make_unique<PeakPolicy>(limits, rng);
}

}  // namespace sluice
