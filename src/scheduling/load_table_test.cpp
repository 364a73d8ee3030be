#include "scheduling/load_table.h"

#include <gtest/gtest.h>

#include "scheduling/ledger.h"
#include "scheduling/test_support.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

LoadReport report_of(std::uint32_t id, std::uint64_t incarnation, std::uint64_t sequence) {
  LoadReport r = idle_report(id, sequence);
  r.incarnation = Incarnation{incarnation};
  return r;
}

TEST(LoadTable, TakesOnlyWhatIsNewer) {
  struct Case {
    const char* name;
    std::uint64_t incarnation;
    std::uint64_t sequence;
    ReportOutcome outcome;
  };
  LoadTable table;
  for (const Case& c : {
           Case{"the first", 5, 3, ReportOutcome::kApplied},
           Case{"the same again", 5, 3, ReportOutcome::kOld},
           Case{"overtaken on its way", 5, 2, ReportOutcome::kOld},
           Case{"the next", 5, 4, ReportOutcome::kApplied},
           Case{"of the life before", 4, 900, ReportOutcome::kOld},
           Case{"after a restart, counting from one", 6, 1, ReportOutcome::kRestarted},
           Case{"late, of the life before", 5, 5, ReportOutcome::kOld},
           Case{"no sequence number", 6, 0, ReportOutcome::kInvalid},
       }) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(table.update(report_of(1, c.incarnation, c.sequence), kTestStart), c.outcome);
  }
  EXPECT_EQ(table.find(InstanceId{1})->incarnation, Incarnation{6});
}

TEST(LoadTable, RefusesNumbersThatNoInstanceHas) {
  LoadTable table;
  for (const auto& spoil : std::vector<void (*)(LoadReport&)>{
           [](LoadReport& r) { r.block_tokens = 0; },
           [](LoadReport& r) { r.total_blocks = -1; },
           [](LoadReport& r) { r.waiting_tokens = -5; },
           [](LoadReport& r) { r.step.base = -1; },
           [](LoadReport& r) { r.step.per_prefill_token = 0.0 / 0.0; },
           [](LoadReport& r) { r.step_token_budget = 0; },
       }) {
    LoadReport r = idle_report(1);
    spoil(r);
    EXPECT_EQ(table.update(r, kTestStart), ReportOutcome::kInvalid);
  }
  EXPECT_EQ(table.find(InstanceId{1}), nullptr);
}

TEST(LoadTable, WhoIsHeldGetsNothingUntilItReports) {
  LoadTable table;
  table.update(report_of(1, 5, 3), kTestStart);
  table.hold(InstanceId{1});
  table.hold(InstanceId{2});  // never heard of
  EXPECT_TRUE(table.find(InstanceId{1})->draining);
  table.update(report_of(1, 5, 3), kTestStart);  // an old one does not count
  EXPECT_TRUE(table.find(InstanceId{1})->draining);
  table.update(report_of(1, 5, 4), kTestStart);
  EXPECT_FALSE(table.find(InstanceId{1})->draining);
}

TEST(LoadTable, AGoneInstanceComesBackOnlyAsANewOne) {
  LoadTable table;
  table.update(report_of(1, 5, 3), kTestStart);
  table.remove(InstanceId{1});
  EXPECT_EQ(table.find(InstanceId{1}), nullptr);
  EXPECT_TRUE(table.instances().empty());
  EXPECT_FALSE(table.largest(Role::kPrefill));
  EXPECT_EQ(table.update(report_of(1, 5, 4), kTestStart), ReportOutcome::kOld);
  EXPECT_EQ(table.find(InstanceId{1}), nullptr);
  EXPECT_EQ(table.update(report_of(1, 6, 1), kTestStart), ReportOutcome::kRestarted);
  EXPECT_NE(table.find(InstanceId{1}), nullptr);
}

TEST(LoadTable, KnowsTheLargestThroughChanges) {
  LoadTable table;
  const auto with_blocks = [](std::uint32_t id, std::uint64_t sequence, std::int64_t blocks,
                              Role role) {
    LoadReport r = idle_report(id, sequence);
    r.total_blocks = blocks;
    r.role = role;
    return r;
  };
  table.update(with_blocks(1, 1, 100, Role::kUnified), kTestStart);
  table.update(with_blocks(2, 1, 300, Role::kDecode), kTestStart);
  EXPECT_EQ(table.largest(Role::kPrefill)->tokens, 1600);
  EXPECT_EQ(table.largest(Role::kDecode)->tokens, 4800);
  table.update(with_blocks(2, 2, 50, Role::kDecode), kTestStart);
  EXPECT_EQ(table.largest(Role::kDecode)->tokens, 1600);
  table.remove(InstanceId{1});
  EXPECT_EQ(table.largest(Role::kDecode)->tokens, 800);
  EXPECT_FALSE(table.largest(Role::kPrefill));
}

TEST(LoadTable, OutlookIsRelativeToTheReport) {
  LoadTable table;
  LoadReport r = idle_report(1);
  r.free_blocks = 10;
  r.outlook = {{kTestStart + 500ms, 900, 100}, {kTestStart + 1500ms, 800, 200}};
  // This table's clock differs from the instance's by years.
  const TimePoint now = kTestStart + std::chrono::hours(30000);
  table.update(r, now);
  const LoadRow& row = *table.find(InstanceId{1});
  ASSERT_EQ(row.num_points, 3U);
  EXPECT_DOUBLE_EQ(row.point_s[1], 0.5);
  EXPECT_EQ(row.headroom(2), 200);
  EXPECT_EQ(row.received_at, now);
}

// Every bound holds for every row below it, whatever was updated in between.
TEST(LoadIndex, BoundsHoldForAllRows) {
  Rng rng(11);
  LoadTable table;
  Ledger ledger(table);
  std::vector<std::uint64_t> sequence(200, 0);
  for (int round = 0; round < 3000; ++round) {
    const auto id = static_cast<std::uint32_t>(rng.below(200));
    if (rng.below(40) == 0) {
      table.remove(InstanceId{id});
    } else if (rng.below(3) == 0) {
      ledger.add(RequestId{rng.below(500)}, InstanceId{id},
                 static_cast<std::int64_t>(rng.below(3000)),
                 static_cast<std::int64_t>(rng.below(300)), kTestStart);
    } else {
      LoadReport r = random_report(id, rng, rng.uniform());
      r.sequence = ++sequence[id];
      r.draining = rng.below(10) == 0;
      table.update(r, kTestStart + std::chrono::milliseconds(round));
    }
  }
  const LoadIndex& index = table.index();
  for (std::size_t i = 0; i < table.rows().size(); ++i) {
    const LoadRow& row = table.rows()[i];
    if (!row.present || row.draining) continue;
    for (std::size_t n = index.leaves() + i; n > 0; n /= 2) {
      const LoadBounds& b = index.node(n);
      for (const std::int32_t prompt : {1, 200, 256, 999, 5000, 16384, 100'000}) {
        ASSERT_LE(b.cost(prompt), row.cost_of(row.wait_s, prompt));
      }
      ASSERT_GE(b.newest, row.received_at);
      ASSERT_LE(b.waiting, row.queue_length());
      if (row.idle()) {
        ASSERT_GE(b.free_tokens, row.capacity_tokens());
      } else if (row.has_slot()) {
        ASSERT_GE(b.free_tokens, row.headroom(row.num_points - 1) * row.block_tokens);
        ASSERT_LE(b.output, row.output_quantiles[2]);
      }
    }
  }
}

TEST(Ledger, CountsFromDispatchToConfirmation) {
  LoadTable table;
  Ledger ledger(table);
  table.update(idle_report(1), kTestStart);
  ledger.add(RequestId{7}, InstanceId{1}, 500, 40, kTestStart);
  ledger.add(RequestId{8}, InstanceId{1}, 100, 10, kTestStart);
  const LoadRow* row = table.find(InstanceId{1});
  EXPECT_EQ(row->ledger.tokens, 600);
  EXPECT_EQ(row->ledger.blocks, 50);
  EXPECT_EQ(row->queue_length(), 2);
  EXPECT_NEAR(row->wait_s, row->step_s + 600 * row->token_s, 1e-9);

  ledger.remove(RequestId{7});
  ledger.remove(RequestId{7});   // twice does no harm
  ledger.remove(RequestId{99});  // nor does a stranger
  EXPECT_EQ(table.find(InstanceId{1})->ledger.tokens, 100);
  EXPECT_EQ(ledger.load(InstanceId{1}).requests, 1);
}

TEST(Ledger, EntriesEndAfterTenSeconds) {
  LoadTable table;
  Ledger ledger(table);
  table.update(idle_report(1), kTestStart);
  ledger.add(RequestId{1}, InstanceId{1}, 100, 10, kTestStart);
  ledger.add(RequestId{2}, InstanceId{1}, 100, 10, kTestStart + 5s);
  ledger.add(RequestId{1}, InstanceId{1}, 100, 10, kTestStart + 6s);  // placed again
  ledger.expire(kTestStart + 10s);
  EXPECT_EQ(ledger.size(), 2U);
  ledger.expire(kTestStart + 15s);
  EXPECT_EQ(ledger.size(), 1U);
  ledger.expire(kTestStart + 16s);
  EXPECT_EQ(ledger.size(), 0U);
  EXPECT_EQ(table.find(InstanceId{1})->ledger.requests, 0);
}

TEST(Ledger, ForgetsAnInstance) {
  LoadTable table;
  Ledger ledger(table);
  table.update(idle_report(1), kTestStart);
  table.update(idle_report(2), kTestStart);
  for (std::uint64_t i = 1; i <= 10; ++i) {
    ledger.add(RequestId{i}, InstanceId{static_cast<std::uint32_t>(1 + i % 2)}, 10, 1, kTestStart);
  }
  ledger.forget(InstanceId{1});
  EXPECT_EQ(ledger.size(), 5U);
  EXPECT_EQ(ledger.load(InstanceId{1}).requests, 0);
  EXPECT_EQ(ledger.load(InstanceId{2}).requests, 5);
}

// Totals equal the sum of the entries through random histories.
TEST(Ledger, NeverDrifts) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Rng rng(seed);
    LoadTable table;
    Ledger ledger(table);
    for (std::uint32_t i = 0; i < 4; ++i) table.update(idle_report(i), kTestStart);
    TimePoint now = kTestStart;
    for (int round = 0; round < 500; ++round) {
      now += std::chrono::milliseconds(rng.below(200));
      const RequestId id{rng.below(50)};
      switch (rng.below(4)) {
        case 0:
        case 1:
          ledger.add(id, InstanceId{static_cast<std::uint32_t>(rng.below(4))},
                     static_cast<std::int64_t>(rng.below(100)), 3, now);
          break;
        case 2: ledger.remove(id); break;
        default: ledger.expire(now);
      }
    }
    std::size_t entries = 0;
    for (std::uint32_t i = 0; i < 4; ++i) {
      const LedgerLoad load = ledger.load(InstanceId{i});
      ASSERT_GE(load.tokens, 0);
      ASSERT_EQ(load.blocks, 3 * load.requests);
      ASSERT_EQ(table.find(InstanceId{i})->ledger.requests, load.requests);
      entries += static_cast<std::size_t>(load.requests);
    }
    ASSERT_EQ(entries, ledger.size()) << "seed " << seed;
    ledger.expire(now + 11s);
    ASSERT_EQ(ledger.size(), 0U);
    for (std::uint32_t i = 0; i < 4; ++i) ASSERT_EQ(ledger.load(InstanceId{i}).tokens, 0);
  }
}

}  // namespace
}  // namespace sluice
