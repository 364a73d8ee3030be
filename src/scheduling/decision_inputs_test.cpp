#include "scheduling/decision_inputs.h"

#include <gtest/gtest.h>

#include "scheduling/eligibility.h"
#include "scheduling/ledger.h"
#include "scheduling/test_support.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

// A cluster in mid-life: reports of all ages and roles, some gone, some held, a ledger.
struct World {
  LoadTable table;
  Ledger ledger{table};
  Rng rng;
  TimePoint now = kTestStart;
  std::uint32_t count;

  World(std::uint64_t seed, std::uint32_t instances) : rng(seed), count(instances) {
    for (std::uint32_t i = 0; i < count; ++i) {
      LoadReport r = rng.below(5) == 0 ? idle_report(i) : random_report(i, rng, rng.uniform());
      r.role = static_cast<Role>(rng.below(3));
      r.draining = rng.below(12) == 0;
      table.update(std::move(r), now - 1ms * rng.below(4000));
    }
    for (std::uint64_t id = 1; id <= 2 * count; ++id) {
      ledger.add(RequestId{id}, some(), 1 + static_cast<std::int64_t>(rng.below(3000)),
                 static_cast<std::int64_t>(rng.below(200)), now);
    }
    if (rng.below(2) == 0) table.remove(some());
    if (rng.below(2) == 0) table.hold(some());
  }

  InstanceId some() { return InstanceId{static_cast<std::uint32_t>(rng.below(count))}; }

  PlacementQuery query(std::uint64_t id) {
    PlacementQuery q{.request = RequestId{id},
                     .role = rng.below(2) == 0 ? Role::kPrefill : Role::kDecode,
                     .prompt_tokens = static_cast<std::int32_t>(1 + rng.below(6000)),
                     .max_new_tokens = static_cast<std::int32_t>(1 + rng.below(12000)),
                     .now = now};
    for (std::uint64_t k = rng.below(4); k > 0; --k) {
      q.cached.push_back({some(), static_cast<std::int32_t>(rng.below(6000))});
    }
    for (std::uint64_t k = rng.below(3); k > 0; --k) q.refused.push_back(some());
    return q;
  }
};

void expect_equal(const Decision& a, const Decision& b) {
  EXPECT_EQ(a.outcome, b.outcome);
  EXPECT_EQ(a.placement, b.placement);
  EXPECT_EQ(a.expected_wait, b.expected_wait);
  EXPECT_EQ(a.needed_blocks, b.needed_blocks);
  ASSERT_EQ(a.candidates.size(), b.candidates.size());
  for (std::size_t i = 0; i < a.candidates.size(); ++i) {
    EXPECT_EQ(a.candidates[i].instance, b.candidates[i].instance);
    EXPECT_EQ(a.candidates[i].rejection, b.candidates[i].rejection);
    EXPECT_EQ(a.candidates[i].cost, b.candidates[i].cost);
    EXPECT_EQ(a.candidates[i].report_age, b.candidates[i].report_age);
  }
}

TEST(DecisionInputs, TheSamePolicyDecidesTheSameAgain) {
  int placed = 0;
  for (const char* name : policy_names()) {
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      SCOPED_TRACE(testing::Message() << name << " seed " << seed);
      World w(seed, static_cast<std::uint32_t>(1 + seed * 7 % kMaxCandidates));
      const auto policy = make_policy(name, {}, Rng(seed));
      const auto other = make_policy(name, {}, Rng(seed + 1000));  // in whatever state
      for (std::uint64_t id = 1000; id < 1010; ++id) {
        const PlacementQuery q = w.query(id);
        const PlacementPolicy::State before = policy->state();
        const Decision decision = policy->place(q, w.table);
        const auto inputs = inputs_of(decision, q, w.table, before);
        ASSERT_EQ(inputs->rows.size(), w.table.rows().size());
        other->resume(inputs->state);
        expect_equal(decision, decide_again(*inputs, *other));
        EXPECT_EQ(other->state().rng.state(), policy->state().rng.state());
        EXPECT_EQ(other->state().turn, policy->state().turn);
        if (!decision.placement) continue;
        ++placed;
        w.ledger.add(q.request, decision.placement->instance, q.prompt_tokens, 10, w.now);
      }
    }
  }
  EXPECT_GT(placed, 2000);
}

TEST(DecisionInputs, OfALargeTableTheyHoldWhoWasLookedAt) {
  World w(3, 300);
  const auto policy = make_policy("forecast", {}, Rng(1));
  for (std::uint64_t id = 1; id <= 50; ++id) {
    const PlacementQuery q = w.query(id);
    const PlacementPolicy::State before = policy->state();
    const Decision decision = policy->place(q, w.table);
    const auto inputs = inputs_of(decision, q, w.table, before);
    EXPECT_EQ(inputs->table_rows, 300U);
    EXPECT_LE(inputs->rows.size(), kMaxCandidates);
    EXPECT_EQ(inputs->rows.size(), decision.candidates.size());
    EXPECT_TRUE(std::ranges::is_sorted(inputs->rows, {}, &LoadRow::instance));
    if (!decision.placement) continue;
    const auto has =
        std::ranges::find(inputs->rows, decision.placement->instance, &LoadRow::instance);
    ASSERT_NE(has, inputs->rows.end());
    EXPECT_TRUE(decide_again(*inputs, *policy).placement);
  }
}

// What a choice costs is the same yardstick for every policy: the forecast's own.
TEST(DecisionInputs, PredictsWhatTheForecastDoes) {
  int placed = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    World w(seed, 12);
    const auto policy = make_policy("forecast", {}, Rng(seed));
    PlacementQuery q = w.query(seed);
    q.role = Role::kPrefill;
    const Decision decision = policy->place(q, w.table);
    if (decision.outcome != PlacementOutcome::kPlaced) continue;
    ++placed;
    const auto inputs = inputs_of(decision, q, w.table, {});
    const InstanceId chosen = decision.placement->instance;
    const auto c = std::ranges::find(decision.candidates, chosen, &Candidate::instance);
    const Prediction predicted = predict(*inputs, chosen);
    EXPECT_DOUBLE_EQ(predicted.ttft_s, c->predicted_ttft_s);
    EXPECT_GT(predicted.peak, 0);
    EXPECT_EQ(predict(*inputs, InstanceId{999}).ttft_s, 0);
  }
  EXPECT_GT(placed, 10);
}

}  // namespace
}  // namespace sluice
