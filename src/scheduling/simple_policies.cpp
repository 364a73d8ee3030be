// The rules of other systems, as baselines and for those who want them.
#include <algorithm>
#include <limits>

#include "scheduling/eligibility.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"
#include "scheduling/simple_policy.h"

namespace sluice {
namespace {

class RoundRobin final : public SimplePolicy {
 public:
  using SimplePolicy::SimplePolicy;
  [[nodiscard]] const char* name() const override { return "round-robin"; }

 private:
  std::optional<std::size_t> choose(const PlacementQuery& query, Rows rows,
                                    Decision& decision) override {
    const auto row = first_eligible(query, rows, state_.turn, decision);
    if (row) state_.turn = (*row + 1) % rows.size();
    return row;
  }
};

class Random final : public SimplePolicy {
 public:
  Random(PlacementLimits limits, Rng rng) : SimplePolicy(limits, rng) {}
  [[nodiscard]] const char* name() const override { return "random"; }

 private:
  std::optional<std::size_t> choose(const PlacementQuery& query, Rows rows,
                                    Decision& decision) override {
    // A few draws are unbiased; only where most are ineligible the walk decides.
    constexpr int kDraws = 16;
    for (int k = 0; k < kDraws && !rows.empty(); ++k) {
      const std::size_t i = state_.rng.below(rows.size());
      decision.candidates.clear();
      if (eligible(query, rows[i], 0, decision)) return i;
    }
    decision.candidates.clear();
    return first_eligible(query, rows, rows.empty() ? 0 : state_.rng.below(rows.size()), decision);
  }
};

class LeastOutstanding final : public SimplePolicy {
 public:
  LeastOutstanding(PlacementLimits limits, Rng rng) : SimplePolicy(limits, rng) {}
  [[nodiscard]] const char* name() const override { return "least-outstanding"; }

 private:
  std::optional<std::size_t> choose(const PlacementQuery& query, Rows rows,
                                    Decision& decision) override {
    std::optional<std::size_t> best;
    std::uint64_t ties = 0;
    std::int32_t least = std::numeric_limits<std::int32_t>::max();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const std::int32_t count = rows[i].outstanding();
      if (!eligible(query, rows[i], count, decision) || count > least) continue;
      if (count < least) ties = 0;
      least = count;
      if (state_.rng.below(++ties) == 0) best = i;  // every tie equally likely
    }
    if (best && decision.candidates.size() > kMaxCandidates) {
      decision.candidates.back() = candidate_of(rows[*best], query, Rejection::kNone, least);
    }
    return best;
  }
};

// Two draws, the one with fewer KV tokens held or on the way.
class TwoChoices final : public SimplePolicy {
 public:
  TwoChoices(PlacementLimits limits, Rng rng) : SimplePolicy(limits, rng) {}
  [[nodiscard]] const char* name() const override { return "two-choices"; }

 private:
  static double kv_tokens(const LoadRow& row) {
    return static_cast<double>(row.kv_tokens + row.ledger.tokens);
  }
  std::optional<std::size_t> draw(const PlacementQuery& query, Rows rows, Decision& decision) {
    constexpr int kDraws = 16;
    for (int k = 0; k < kDraws && !rows.empty(); ++k) {
      const std::size_t i = state_.rng.below(rows.size());
      if (eligible(query, rows[i], kv_tokens(rows[i]), decision)) return i;
    }
    return std::nullopt;
  }
  std::optional<std::size_t> choose(const PlacementQuery& query, Rows rows,
                                    Decision& decision) override {
    const auto a = draw(query, rows, decision);
    if (!a)
      return first_eligible(query, rows, rows.empty() ? 0 : state_.rng.below(rows.size()),
                            decision);
    auto b = draw(query, rows, decision);
    for (int k = 0; k < 4 && b == a; ++k) b = draw(query, rows, decision);
    return b && kv_tokens(rows[*b]) < kv_tokens(rows[*a]) ? b : a;
  }
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_round_robin_policy(PlacementLimits limits) {
  return std::make_unique<RoundRobin>(limits);
}
std::unique_ptr<PlacementPolicy> make_random_policy(PlacementLimits limits, Rng rng) {
  return std::make_unique<Random>(limits, rng);
}
std::unique_ptr<PlacementPolicy> make_least_outstanding_policy(PlacementLimits limits, Rng rng) {
  return std::make_unique<LeastOutstanding>(limits, rng);
}
std::unique_ptr<PlacementPolicy> make_two_choices_policy(PlacementLimits limits, Rng rng) {
  return std::make_unique<TwoChoices>(limits, rng);
}

}  // namespace sluice
