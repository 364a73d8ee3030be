// Condition, then cost, over what instances say of their next windows.
#include <algorithm>
#include <cmath>
#include <limits>

#include "scheduling/eligibility.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"

namespace sluice {
namespace {

// Near ties that are enough to draw from: they are gathered from a random place on.
constexpr std::size_t kTies = 8;

// One pass over the index: the least cost first, then what is nearly as good.
class Pass {
 public:
  Pass(const PlacementQuery& query, const LoadTable& loads, const PlacementLimits& limits,
       bool relaxed, Decision& record)
      : query_(query),
        loads_(loads),
        rows_(loads.rows()),
        index_(loads.index()),
        limits_(limits),
        relaxed_(relaxed),
        record_(record),
        oldest_(query.now - limits.max_report_age),
        max_wait_s_(to_seconds(limits.max_wait) * (relaxed ? 2 : 1)),
        role_bit_(static_cast<std::uint8_t>(1U << static_cast<unsigned>(query.role))),
        slack_(1 + limits.near_tie / 2),
        judged_left_(limits.max_judged),
        visits_left_(limits.max_visits) {}

  // Index of the chosen row, if any is eligible.
  [[nodiscard]] std::optional<std::size_t> choose(Rng& rng) {
    if (rows_.size() <= kMaxCandidates) {  // a small cluster's record shows every instance
      for (std::size_t i = 0; i < rows_.size(); ++i) {
        if (rows_[i].present) consider(i);
      }
    } else {
      for (const CachedPrefix& prefix : query_.cached) {
        const LoadRow* row = loads_.find(prefix.instance);
        if (row == nullptr) continue;
        holds_prefix_.push_back(static_cast<std::size_t>(row - rows_.data()));
        consider(holds_prefix_.back());
      }
      coin_ = rng();
      const auto holders = static_cast<std::ptrdiff_t>(eligible_.size());
      find_least(1);
      // Where find_least() began is not even; what is drawn from is gathered anew.
      const std::vector<Eligible> found(eligible_.begin() + holders, eligible_.end());
      eligible_.resize(static_cast<std::size_t>(holders));
      judged_left_ = limits_.max_judged;
      visits_left_ = limits_.max_visits;
      const double limit = least_ * slack_;
      const std::size_t from = rng.below(rows_.size());
      gather({1, 0, index_.leaves()}, from, rows_.size(), limit);
      gather({1, 0, index_.leaves()}, 0, from, limit);
      keep_near(limit);
      if (eligible_.empty()) eligible_ = found;
    }
    keep_near(least_ * (rows_.size() <= kMaxCandidates ? slack_ * slack_ : slack_));
    if (eligible_.empty()) return std::nullopt;
    return eligible_[rng.below(eligible_.size())].row;
  }

  // Seconds until one of those rejected for load may be eligible.
  [[nodiscard]] double room_in_s() const { return room_in_s_; }

 private:
  struct Eligible {
    std::size_t row = 0;
    double cost = 0;
  };
  struct Subtree {
    std::size_t node = 1;
    std::size_t begin = 0;  // rows [begin, end)
    std::size_t end = 0;
  };

  void keep_near(double limit) {
    std::erase_if(eligible_, [limit](const Eligible& e) { return e.cost > limit; });
  }

  // No row below can be eligible and cost at most `limit`.
  [[nodiscard]] bool excluded(const LoadBounds& b, double limit) const {
    if ((b.roles & role_bit_) == 0 || b.newest < oldest_ || b.wait_s > max_wait_s_) return true;
    if (b.waiting >= limits_.max_waiting) return true;
    if (relaxed_
            ? b.waiting >= limits_.relaxed_waiting
            : b.free_tokens < query_.prompt_tokens + std::min(b.output, query_.max_new_tokens)) {
      return true;
    }
    return b.cost(query_.prompt_tokens) > limit;
  }

  void consider(std::size_t i) {
    const LoadRow& row = rows_[i];
    const Judgement j = judge(row, query_, limits_, relaxed_);
    --judged_left_;
    if (record_.candidates.size() < kMaxCandidates || j.rejection == Rejection::kNone) {
      record_.candidates.push_back({.instance = row.instance,
                                    .rejection = j.rejection,
                                    .cost = j.cost_s,
                                    .predicted_ttft_s = j.ttft_s,
                                    .report_age = query_.now - row.received_at});
    }
    if (j.rejection == Rejection::kNone) {
      eligible_.push_back({i, j.cost_s});
      least_ = std::min(least_, j.cost_s);
    } else if (j.rejection == Rejection::kMemory || j.rejection == Rejection::kWait) {
      room_in_s_ = std::min(room_in_s_, j.room_in_s);
    }
  }

  // Branch and bound: the child with the lower bound first. What is left out
  // could be better by less than half a near tie.
  void find_least(std::size_t node) {
    if (spent() || excluded(index_.node(node), least_ / slack_)) return;
    if (node >= index_.leaves()) {
      const std::size_t i = node - index_.leaves();
      if (std::find(holds_prefix_.begin(), holds_prefix_.end(), i) != holds_prefix_.end()) return;
      consider(i);
      return;
    }
    coin_ = coin_ >> 1 | coin_ << 63;
    const std::size_t left = 2 * node;
    const LoadBounds& l = index_.node(left);
    const LoadBounds& r = index_.node(left + 1);
    const double difference = l.roles == 0 || r.roles == 0
                                  ? l.roles == 0
                                  : l.cost(query_.prompt_tokens) - r.cost(query_.prompt_tokens);
    const bool right_first = difference > 0 || (difference == 0 && (coin_ & 1) != 0);
    find_least(right_first ? left + 1 : left);
    find_least(right_first ? left : left + 1);
  }

  // Rows of [from, to) that are eligible and cost at most `limit`.
  void gather(Subtree t, std::size_t from, std::size_t to, double limit) {
    if (eligible_.size() >= kTies || spent()) return;
    if (t.end <= from || t.begin >= to || excluded(index_.node(t.node), limit)) return;
    if (t.node < index_.leaves()) {
      const std::size_t middle = (t.begin + t.end) / 2;
      gather({2 * t.node, t.begin, middle}, from, to, limit);
      gather({2 * t.node + 1, middle, t.end}, from, to, limit);
      return;
    }
    const std::size_t i = t.begin;
    if (std::find(holds_prefix_.begin(), holds_prefix_.end(), i) == holds_prefix_.end()) {
      consider(i);
    }
  }

  [[nodiscard]] bool spent() { return judged_left_ <= 0 || --visits_left_ < 0; }

  const PlacementQuery& query_;
  const LoadTable& loads_;
  const std::span<const LoadRow> rows_;
  const LoadIndex& index_;
  const PlacementLimits& limits_;
  const bool relaxed_;
  Decision& record_;
  const TimePoint oldest_;
  const double max_wait_s_;
  const std::uint8_t role_bit_;

  const double slack_;  // applied twice: to the least found, and to what counts as near it
  int judged_left_;
  int visits_left_;
  std::uint64_t coin_ = 0;
  double least_ = std::numeric_limits<double>::infinity();
  double room_in_s_ = std::numeric_limits<double>::infinity();
  std::vector<Eligible> eligible_;
  std::vector<std::size_t> holds_prefix_;  // judged first: their cost is below any bound
};

class ForecastPolicy final : public PlacementPolicy {
 public:
  ForecastPolicy(PlacementLimits limits, Rng rng) : PlacementPolicy(rng), limits_(limits) {}

  [[nodiscard]] const char* name() const override { return "forecast"; }

  [[nodiscard]] Decision place(const PlacementQuery& query, const LoadTable& loads) override {
    Decision decision = new_decision(query, name());
    decision.candidates.reserve(
        std::min(loads.rows().size(), 2 * static_cast<std::size_t>(limits_.max_judged) + 8));
    if (never_fits(query, loads, decision)) return decision;
    double room_in_s = std::numeric_limits<double>::infinity();
    for (const bool relaxed : {false, true}) {
      decision.candidates.clear();
      Pass pass(query, loads, limits_, relaxed, decision);
      if (const auto row = pass.choose(state_.rng)) {
        const auto outcome = relaxed ? PlacementOutcome::kPlacedRelaxed : PlacementOutcome::kPlaced;
        place_at(loads.rows()[*row], outcome, decision);
        break;
      }
      room_in_s = std::min(room_in_s, pass.room_in_s());
    }
    if (!decision.placement) room_in_s = explain(query, loads, room_in_s, decision);
    if (!decision.placement) decision.expected_wait = from_seconds(room_in_s);
    order_candidates(decision);
    return decision;
  }

 private:
  // Why nobody was eligible, by a sample where the bounds excluded everybody
  // unseen. Returns the seconds until somebody may be.
  double explain(const PlacementQuery& query, const LoadTable& loads, double room_in_s,
                 Decision& decision) {
    const auto rows = loads.rows();
    const std::size_t from = rows.empty() ? 0 : state_.rng.below(rows.size());
    const bool unseen = decision.candidates.empty();
    for (std::size_t k = 0; unseen && k < std::min(rows.size(), kMaxCandidates); ++k) {
      const LoadRow& row = rows[(from + k) % rows.size()];
      if (!row.present) continue;
      const Judgement j = judge(row, query, limits_, /*relaxed=*/true);
      decision.candidates.push_back({.instance = row.instance,
                                     .rejection = j.rejection,
                                     .report_age = query.now - row.received_at});
      if (j.room_in_s > 0) room_in_s = std::min(room_in_s, j.room_in_s);
    }
    constexpr double kUnknown = 1.0;  // nobody was heard of: look again in a second
    return room_in_s < std::numeric_limits<double>::infinity() ? room_in_s : kUnknown;
  }

  const PlacementLimits limits_;
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_forecast_policy(PlacementLimits limits, Rng rng) {
  return std::make_unique<ForecastPolicy>(limits, rng);
}

}  // namespace sluice
