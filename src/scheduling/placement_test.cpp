#include "scheduling/placement.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>

#include "scheduling/eligibility.h"
#include "scheduling/ledger.h"
#include "scheduling/test_support.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

PlacementQuery query_of(std::int32_t prompt, std::int32_t max_new = 100,
                        TimePoint now = kTestStart) {
  return {.request = RequestId{1},
          .role = Role::kPrefill,
          .prompt_tokens = prompt,
          .max_new_tokens = max_new,
          .now = now};
}

std::unique_ptr<PlacementPolicy> forecast(std::uint64_t seed = 1, PlacementLimits limits = {}) {
  return make_forecast_policy(limits, Rng(seed));
}

Rejection rejection_of(const Decision& d, std::uint32_t instance) {
  for (const Candidate& c : d.candidates) {
    if (c.instance == InstanceId{instance}) return c.rejection;
  }
  ADD_FAILURE() << "no candidate " << instance;
  return Rejection::kNone;
}

class EveryPolicy : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<PlacementPolicy> policy(std::uint64_t seed = 3) {
    return make_policy(GetParam(), {}, Rng(seed));
  }
};
INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy,
                         testing::ValuesIn(policy_names().begin(), policy_names().end()),
                         [](const auto& param) {
                           std::string name = param.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST_P(EveryPolicy, NamesItself) {
  EXPECT_STREQ(policy()->name(), GetParam());
}

TEST(Policy, UnknownNameIsNull) {
  EXPECT_EQ(make_policy("best", {}, Rng(1)), nullptr);
}

// What was not heard of is neither idle nor full: it is not there (zero vs unknown).
TEST_P(EveryPolicy, IgnoresOldReportsAndMissingOnes) {
  LoadTable table;
  EXPECT_EQ(policy()->place(query_of(10), table).outcome, PlacementOutcome::kNoneEligible);

  table.update(idle_report(1), kTestStart);  // idle, but long ago
  LoadReport busy = idle_report(2);
  busy.running_sequences = 20;
  busy.context_tokens = 4000;
  busy.free_blocks = 700;
  table.update(busy, kTestStart + 10s);
  const Decision d = policy()->place(query_of(10, 100, kTestStart + 11s), table);
  ASSERT_TRUE(d.placement);
  EXPECT_EQ(d.placement->instance, InstanceId{2});

  const Decision later = policy()->place(query_of(10, 100, kTestStart + 20s), table);
  EXPECT_EQ(later.outcome, PlacementOutcome::kNoneEligible);
  EXPECT_EQ(rejection_of(later, 2), Rejection::kStale);
  EXPECT_GT(later.expected_wait, 0s);
}

TEST_P(EveryPolicy, RespectsRoleAndDraining) {
  LoadTable table;
  LoadReport decode = idle_report(1);
  decode.role = Role::kDecode;
  LoadReport draining = idle_report(2);
  draining.draining = true;
  table.update(decode, kTestStart);
  table.update(draining, kTestStart);
  const Decision none = policy()->place(query_of(10), table);
  EXPECT_EQ(none.outcome, PlacementOutcome::kNoneEligible);
  EXPECT_EQ(rejection_of(none, 1), Rejection::kWrongRole);
  EXPECT_EQ(rejection_of(none, 2), Rejection::kDraining);

  table.update(idle_report(3), kTestStart);
  EXPECT_EQ(policy()->place(query_of(10), table).placement->instance, InstanceId{3});
}

// A request that can never fit is told so at once, with both numbers.
TEST_P(EveryPolicy, RefusesWhatNeverFits) {
  LoadTable table;
  table.update(idle_report(1), kTestStart);
  LoadReport small = idle_report(2);
  small.total_blocks = 100;
  small.free_blocks = 100;
  table.update(small, kTestStart);
  const Decision d = policy()->place(query_of(15'000, 1'001), table);
  EXPECT_EQ(d.outcome, PlacementOutcome::kNeverFits);
  EXPECT_EQ(d.needed_blocks, 1001);
  EXPECT_EQ(d.largest_blocks, 1000);
  // To the last token it fits the larger one.
  const Decision fits = policy()->place(query_of(15'000, 1'000), table);
  ASSERT_TRUE(fits.placement);
  EXPECT_EQ(fits.placement->instance, InstanceId{1});
}

TEST_P(EveryPolicy, EqualSeedsGiveEqualPlacements) {
  Rng rng(5);
  LoadTable table;
  for (std::uint32_t i = 0; i < 200; ++i) table.update(random_report(i, rng, 0.5), kTestStart);
  const auto a = policy(9);
  const auto b = policy(9);
  for (int k = 0; k < 300; ++k) {
    const auto q = query_of(50 + k, 100);
    const Decision da = a->place(q, table);
    const Decision db = b->place(q, table);
    ASSERT_EQ(da.placement.has_value(), db.placement.has_value());
    if (da.placement) {
      ASSERT_EQ(da.placement->instance, db.placement->instance);
    }
    ASSERT_LE(da.candidates.size(), 64U);
    if (!da.placement) continue;
    ASSERT_TRUE(std::any_of(da.candidates.begin(), da.candidates.end(), [&](const Candidate& c) {
      return c.instance == da.placement->instance;
    }));
  }
}

// Equal instances get equal shares, whatever their place in the table (tie bias).
TEST_P(EveryPolicy, TiesAreShared) {
  for (const std::uint32_t instances : {4U, 200U}) {
    LoadTable table;
    for (std::uint32_t i = 0; i < instances; ++i) table.update(idle_report(i), kTestStart);
    const auto p = policy();
    std::map<InstanceId, int> count;
    const int rounds = static_cast<int>(instances) * 200;
    for (int k = 0; k < rounds; ++k) ++count[p->place(query_of(10), table).placement->instance];
    ASSERT_EQ(count.size(), instances);
    for (const auto& [id, n] : count) {
      EXPECT_NEAR(n, 200, 80) << GetParam() << " instance " << id.value << " of " << instances;
    }
  }
}

// A burst between two reports spreads by the ledger, not onto the one that
// looked best when it last spoke.
TEST(Forecast, ABurstBetweenTwoReportsSpreads) {
  for (const char* name : {"forecast", "least-outstanding"}) {
    LoadTable table;
    Ledger ledger(table);
    for (std::uint32_t i = 0; i < 8; ++i) table.update(idle_report(i), kTestStart);
    const auto p = make_policy(name, {}, Rng(2));
    std::map<InstanceId, int> count;
    for (std::uint64_t k = 0; k < 80; ++k) {
      const Decision d = p->place(query_of(400), table);
      ASSERT_TRUE(d.placement) << k;
      ++count[d.placement->instance];
      ledger.add(RequestId{k}, d.placement->instance, 400, 32, kTestStart);
    }
    for (const auto& [id, n] : count) EXPECT_NEAR(n, 10, 2) << name;
  }
}

// Whose step times nobody has measured yet looks neither free nor slow, whatever it
// believes: a restarted instance got every request of a burst, or none.
TEST(Forecast, AFreshInstanceGetsItsShare) {
  for (const double guess : {0.01, 0.3, 3.0, 100.0}) {
    for (const int prompt : {1, 400}) {
      SCOPED_TRACE(testing::Message() << guess << " x, prompts of " << prompt);
      LoadTable table;
      Ledger ledger(table);
      table.update(idle_report(0), kTestStart);
      LoadReport fresh = idle_report(1);
      fresh.step = {.base = guess * fresh.step.base,
                    .per_prefill_token = guess * fresh.step.per_prefill_token,
                    .per_decode_sequence = guess * fresh.step.per_decode_sequence,
                    .per_context_token = guess * fresh.step.per_context_token};
      table.update(fresh, kTestStart);
      const auto p = forecast();
      std::map<InstanceId, int> count;
      for (std::uint64_t k = 0; k < 8; ++k) {
        const Decision d = p->place(query_of(prompt), table);
        ASSERT_TRUE(d.placement);
        ++count[d.placement->instance];
        ledger.add(RequestId{k}, d.placement->instance, prompt, 8, kTestStart);
      }
      EXPECT_NEAR(count[InstanceId{1}], 4, 1);
    }
  }
}

// Small differences must not be rounded away (integer division in the cost).
TEST(Forecast, SmallLoadsStillOrder) {
  LoadTable table;
  for (std::uint32_t i = 0; i < 5; ++i) {
    LoadReport r = idle_report(i);
    r.running_sequences = 1;
    r.free_blocks = 900;
    r.step = {.base = 1e-6, .per_prefill_token = 1e-6};
    r.uncomputed_tokens = i == 3 ? 7 : 9;
    r.max_running = 1000;
    table.update(r, kTestStart);
  }
  const auto p = forecast(1, {.near_tie = 0});
  for (int k = 0; k < 20; ++k) {
    EXPECT_EQ(p->place(query_of(1, 1), table).placement->instance, InstanceId{3});
  }
}

// No flag remembers an overload: the next report is the truth (latched overload).
TEST(Forecast, AnOverloadEndsWithTheNextReport) {
  LoadTable table;
  const auto p = forecast();
  LoadReport full = idle_report(1, 1);
  full.running_sequences = 64;
  full.waiting_requests = 64;
  full.waiting_tokens = full.uncomputed_tokens = 64'000;
  full.free_blocks = 0;
  table.update(full, kTestStart);
  for (int k = 0; k < 10; ++k) {
    EXPECT_EQ(p->place(query_of(10), table).outcome, PlacementOutcome::kNoneEligible);
  }
  table.update(idle_report(1, 2), kTestStart);
  EXPECT_EQ(p->place(query_of(10), table).outcome, PlacementOutcome::kPlaced);
}

TEST(Forecast, TakesTheLeastTimeToFirstToken) {
  LoadTable table;
  LoadReport fast_but_busy = idle_report(1);
  fast_but_busy.step.per_prefill_token = 0.0001;
  fast_but_busy.running_sequences = 2;
  fast_but_busy.free_blocks = 900;
  fast_but_busy.uncomputed_tokens = 5000;  // half a second of backlog
  table.update(fast_but_busy, kTestStart);
  table.update(idle_report(2), kTestStart);  // 1,000 tokens a second
  const auto p = forecast();
  EXPECT_EQ(p->place(query_of(100), table).placement->instance, InstanceId{2});
  EXPECT_EQ(p->place(query_of(5000), table).placement->instance, InstanceId{1});
}

TEST(Forecast, PrefixesCountAsComputed) {
  for (const std::uint32_t instances : {3U, 300U}) {
    LoadTable table;
    for (std::uint32_t i = 0; i < instances; ++i) table.update(idle_report(i), kTestStart);
    PlacementQuery q = query_of(1000);
    q.cached = {{InstanceId{1}, 800}, {InstanceId{999}, 1000}};
    const auto p = forecast();
    for (int k = 0; k < 20; ++k) {
      EXPECT_EQ(p->place(q, table).placement->instance, InstanceId{1});
    }
    // But not at any price: a long queue there costs more than computing it again.
    LoadReport busy = idle_report(1, 2);
    busy.running_sequences = 1;
    busy.free_blocks = 900;
    busy.uncomputed_tokens = 3000;
    table.update(busy, kTestStart);
    EXPECT_NE(p->place(q, table).placement->instance, InstanceId{1});
  }
}

// Memory at a future instant decides, not memory now (CN119149252A).
TEST(Forecast, DemandCurveMeetsTheOutlook) {
  struct Case {
    const char* name;
    std::int64_t free_now;
    std::vector<std::int64_t> free_then;  // every 500 ms
    std::int32_t prompt;
    std::int32_t max_new;
    std::optional<double> start;
  };
  for (const Case& c : {
           Case{"room now and later", 100, {100, 100}, 160, 160, 0.0},
           Case{"room now, not when it has grown", 30, {12, 12}, 160, 300, std::nullopt},
           Case{"the short one is over by then", 30, {5, 5, 30}, 16, 10, 0.0},
           Case{"none now, room at the first window end", 2, {40, 40, 40}, 160, 160, 0.5},
           Case{"room only from the second on", 2, {3, 40, 40}, 160, 160, 1.0},
           Case{"a dip in between", 40, {1, 40, 40}, 160, 160, 1.0},
           Case{"never in sight", 2, {3, 4, 5}, 160, 160, std::nullopt},
           Case{"no outlook, room for all of it", 20, {}, 160, 160, 0.0},
           Case{"no outlook, room for the prompt only", 12, {}, 160, 160, std::nullopt},
       }) {
    SCOPED_TRACE(c.name);
    LoadReport r = idle_report(1);
    r.running_sequences = 3;
    r.step = {.base = 0.01, .per_prefill_token = 0.0001};
    r.free_blocks = c.free_now;
    for (std::size_t i = 0; i < c.free_then.size(); ++i) {
      r.outlook.push_back({kTestStart + 500ms * static_cast<int>(i + 1), 0, c.free_then[i]});
    }
    LoadTable table;
    table.update(r, kTestStart);
    const auto start = memory_start(*table.find(InstanceId{1}), query_of(c.prompt, c.max_new));
    ASSERT_EQ(start.has_value(), c.start.has_value());
    if (start) {
      EXPECT_NEAR(*start, *c.start, 1e-9);
    }
  }
}

TEST(Forecast, RelaxedPassKeepsAShortQueueAtTheInstance) {
  LoadReport full = idle_report(1);
  full.running_sequences = 10;
  full.free_blocks = 0;
  full.window_end = kTestStart + 700ms;
  LoadTable table;
  Ledger ledger(table);
  table.update(full, kTestStart);
  const auto p = forecast();
  for (std::uint64_t k = 1; k <= 2; ++k) {
    const Decision d = p->place(query_of(10), table);
    EXPECT_EQ(d.outcome, PlacementOutcome::kPlacedRelaxed);
    EXPECT_GE(d.candidates.at(0).predicted_ttft_s, 0.7);
    ledger.add(RequestId{k}, InstanceId{1}, 10, 1, kTestStart);
  }
  const Decision d = p->place(query_of(10), table);
  EXPECT_EQ(d.outcome, PlacementOutcome::kNoneEligible);
  EXPECT_NEAR(to_seconds(d.expected_wait), 0.7, 1e-6);  // the window's end
}

// Nothing runs or waits there: whatever can fit at all is taken, so no request
// waits for ever on an idle system.
TEST(Forecast, AnIdleInstanceTakesWhateverFits) {
  LoadTable table;
  table.update(idle_report(1), kTestStart);
  EXPECT_EQ(forecast()->place(query_of(15'000, 1'000), table).outcome, PlacementOutcome::kPlaced);
}

// The tree finds what looking at every instance finds.
TEST(Forecast, TheIndexFindsTheLeastCost) {
  int placed = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Rng rng(seed);
    LoadTable table;
    Ledger ledger(table);
    const double fill = rng.uniform();
    for (std::uint32_t i = 0; i < 300; ++i) {
      LoadReport r = random_report(i, rng, fill);
      r.step.per_prefill_token *= 0.5 + rng.uniform();
      r.draining = rng.below(10) == 0;
      table.update(r, kTestStart - std::chrono::milliseconds(rng.below(4000)));
    }
    for (std::uint64_t k = 0; k < 100; ++k) {
      ledger.add(RequestId{k}, InstanceId{static_cast<std::uint32_t>(rng.below(300))},
                 static_cast<std::int64_t>(rng.below(900)), 30, kTestStart);
    }
    PlacementQuery q = query_of(static_cast<std::int32_t>(1 + rng.below(3000)), 200);
    for (int c = 0; c < 3; ++c) {
      q.cached.push_back({InstanceId{static_cast<std::uint32_t>(rng.below(300))},
                          static_cast<std::int32_t>(rng.below(3000))});
    }
    const PlacementLimits limits{.near_tie = 0, .max_judged = 1000, .max_visits = 10'000};
    double least = std::numeric_limits<double>::infinity();
    for (const LoadRow& row : table.rows()) {
      const Judgement j = judge(row, q, limits, /*relaxed=*/false);
      if (j.rejection == Rejection::kNone) least = std::min(least, j.cost_s);
    }
    const Decision d = make_forecast_policy(limits, Rng(seed))->place(q, table);
    if (least == std::numeric_limits<double>::infinity()) {
      EXPECT_NE(d.outcome, PlacementOutcome::kPlaced);
      continue;
    }
    ASSERT_EQ(d.outcome, PlacementOutcome::kPlaced) << "seed " << seed;
    const Judgement chosen = judge(*table.find(d.placement->instance), q, limits, false);
    ASSERT_EQ(chosen.rejection, Rejection::kNone);
    ASSERT_EQ(chosen.cost_s, least) << "seed " << seed;
    ++placed;
  }
  EXPECT_GT(placed, 30);
}

// With its limits on time the search still lands near the least cost.
TEST(Forecast, TheLimitedSearchIsNearlyAsGood) {
  for (const double fill : {0.0, 0.5, 0.9}) {
    Rng rng(17);
    LoadTable table;
    for (std::uint32_t i = 0; i < 3000; ++i) table.update(random_report(i, rng, fill), kTestStart);
    const auto p = forecast();
    double ratios = 0;
    constexpr int kRounds = 200;
    for (int k = 0; k < kRounds; ++k) {
      const auto q = query_of(static_cast<std::int32_t>(1 + rng.below(4000)), 200);
      double least = std::numeric_limits<double>::infinity();
      for (const LoadRow& row : table.rows()) {
        const Judgement j = judge(row, q, {}, /*relaxed=*/false);
        if (j.rejection == Rejection::kNone) least = std::min(least, j.cost_s);
      }
      const Decision d = p->place(q, table);
      ASSERT_EQ(d.outcome, PlacementOutcome::kPlaced);
      ratios += judge(*table.find(d.placement->instance), q, {}, false).cost_s / least;
    }
    EXPECT_LT(ratios / kRounds, 1.08) << "memory in use " << fill;
  }
}

}  // namespace
}  // namespace sluice
