#include "cluster/local_scheduler.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sluice {
namespace {

using namespace std::chrono_literals;

LoadReport report(std::uint32_t instance, std::uint64_t sequence, std::int64_t used, Role role) {
  LoadReport r;
  r.instance = InstanceId{instance};
  r.incarnation = Incarnation{1};
  r.sequence = sequence;
  r.measured_at = TimePoint{1h};
  r.role = role;
  r.total_blocks = 1000;
  r.granted_blocks = used;
  r.free_blocks = 1000 - used;
  r.running_sequences = used > 0 ? 1 : 0;
  r.window_end = r.measured_at + 1s;
  r.outlook = {{r.measured_at + 1s, used, 1000 - used}};
  r.step = {0.01, 1e-4, 1e-3, 0};
  r.output_quantiles = {10, 100, 200};
  return r;
}

struct World {
  TimePoint now{1h};
  std::vector<Token> prompt = std::vector<Token>(320, 3);
  LocalScheduler scheduler{InstanceId{0}, make_policy("least-peak", {.near_tie = 0}, Rng(1))};
  Decision choose(std::uint64_t request, const std::set<InstanceId>& refused = {}) {
    return scheduler.choose({.request = RequestId{request},
                             .prompt = prompt,
                             .known_tokens = 321,
                             .left_tokens = 100,
                             .refused = &refused},
                            now);
  }
};

TEST(LocalScheduler, TakesTheLeastPredictedPeakOfThoseThatDecode) {
  World w;
  w.scheduler.on_report(report(1, 1, 500, Role::kDecode), w.now);
  w.scheduler.on_report(report(2, 1, 300, Role::kDecode), w.now);
  w.scheduler.on_report(report(3, 1, 0, Role::kPrefill), w.now);
  w.scheduler.on_report(report(0, 1, 0, Role::kUnified), w.now);  // itself
  const Decision d = w.choose(1);
  ASSERT_TRUE(d.placement);
  EXPECT_EQ(d.placement->instance, InstanceId{2});
  EXPECT_EQ(d.by, InstanceId{0});
  EXPECT_EQ(d.role, Role::kDecode);
  EXPECT_EQ(w.scheduler.take_decisions().size(), 1U);
  EXPECT_TRUE(w.scheduler.take_decisions().empty());
}

TEST(LocalScheduler, ABurstBetweenTwoReportsSpreads) {
  World w;
  for (std::uint32_t i = 1; i <= 3; ++i) {
    w.scheduler.on_report(report(i, 1, 10, Role::kDecode), w.now);
  }
  std::map<InstanceId, int> chosen;
  for (std::uint64_t id = 1; id <= 12; ++id) {
    w.prompt.assign(320, static_cast<Token>(id));  // nothing in common
    ++chosen[w.choose(id).placement->instance];
  }
  for (std::uint32_t i = 1; i <= 3; ++i) EXPECT_EQ(chosen[InstanceId{i}], 4);
}

TEST(LocalScheduler, WhoHasRefusedIsNotAskedAgain) {
  World w;
  w.scheduler.on_report(report(1, 1, 500, Role::kDecode), w.now);
  w.scheduler.on_report(report(2, 1, 300, Role::kDecode), w.now);
  EXPECT_EQ(w.choose(1, {InstanceId{2}}).placement->instance, InstanceId{1});
  const Decision none = w.choose(1, {InstanceId{1}, InstanceId{2}});
  EXPECT_FALSE(none.placement);
  EXPECT_GT(none.expected_wait, Duration::zero());
  for (const Candidate& c : none.candidates) EXPECT_EQ(c.rejection, Rejection::kRefused);
}

TEST(LocalScheduler, WhatIsOldGoneOrFullIsNotEligible) {
  World w;
  w.scheduler.on_report(report(1, 1, 100, Role::kDecode), w.now);
  w.scheduler.on_report(report(2, 1, 300, Role::kDecode), w.now);
  EXPECT_TRUE(w.scheduler.instance_gone(InstanceId{1}, Incarnation{1}));
  EXPECT_EQ(w.choose(1).placement->instance, InstanceId{2});
  w.now += 10s;
  EXPECT_FALSE(w.choose(1).placement);
  EXPECT_EQ(w.scheduler.on_report(report(1, 2, 0, Role::kDecode), w.now), ReportOutcome::kOld);
}

// Where nobody's forecast has room, the one that comes nearest is asked all the
// same: it knows better when.
TEST(LocalScheduler, TheInstanceHasTheLastWord) {
  World w;
  w.scheduler.on_report(report(1, 1, 999, Role::kDecode), w.now);
  w.scheduler.on_report(report(2, 1, 990, Role::kDecode), w.now);
  const Decision d = w.choose(1);
  EXPECT_EQ(d.outcome, PlacementOutcome::kPlacedRelaxed);
  EXPECT_EQ(d.placement->instance, InstanceId{2});
}

}  // namespace
}  // namespace sluice
