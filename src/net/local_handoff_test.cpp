// Prefill and decode apart, in one process, threads and all.
#include <gtest/gtest.h>

#include "net/net_test_support.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

HandoffStats total(const ClusterSnapshot& snapshot) {
  HandoffStats sum;
  for (const InstanceSnapshot& i : snapshot.instances) {
    if (!i.handoffs) continue;
    for (std::size_t o = 0; o < sum.source.outcomes.size(); ++o) {
      sum.source.outcomes[o] += i.handoffs->source.outcomes[o];
    }
    sum.taken += i.handoffs->taken;
    sum.reservations += i.handoffs->reservations;
    sum.leaving += i.handoffs->leaving;
    sum.transfer.bytes += i.handoffs->transfer.bytes;
  }
  return sum;
}

// Until so many have been taken over, both sides say so, nothing runs and nothing is held anywhere;
// the last state seen. Statistics are up to 90 ms old.
std::shared_ptr<const ClusterSnapshot> wait_empty(const LocalCluster& cluster,
                                                  std::int64_t least_taken = 0) {
  std::shared_ptr<const ClusterSnapshot> s;
  for (int i = 0; i < 3000; ++i) {
    s = cluster.snapshot();
    bool empty = !s->instances.empty();
    for (const InstanceSnapshot& instance : s->instances) {
      empty = empty && instance.stats.kv.granted_blocks == 0 && instance.stats.running.empty();
    }
    const HandoffStats sum = total(*s);
    const bool told = sum.taken >= least_taken && sum.taken == sum.source.outcomes[0];
    if (empty && told && sum.reservations == 0 && sum.leaving == 0) return s;
    std::this_thread::sleep_for(5ms);
  }
  ADD_FAILURE() << "something is held for ever";
  return s;
}

ClusterSetup apart(std::size_t prefill, std::size_t decode) {
  ClusterSetup setup{.instances = prefill + decode, .prefill = prefill};
  setup.cluster.scheduler.queue_limit = 1000;
  return setup;
}

TEST(LocalHandoff, AnswersAreThoseOfOneInstance) {
  RunningCluster c(apart(2, 2));
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 80;
  const auto tokens = [](std::uint64_t id) { return static_cast<std::int32_t>(1 + id % 30); };
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(c.submit(id, 5 + id % 40, tokens(id)));
  }
  ASSERT_TRUE(c.recorder.wait_finished(kRequests));
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    const auto r = c.request(id, 5 + id % 40, tokens(id));
    EXPECT_EQ(c.recorder.answer(id).tokens, c.model.expected_output(r->prompt, tokens(id))) << id;
  }
  EXPECT_EQ(c.recorder.violations(), 0);
  const auto snapshot = wait_empty(*c.cluster, kRequests / 2);
  const HandoffStats sum = total(*snapshot);
  EXPECT_GE(sum.taken, kRequests / 2);
  EXPECT_GT(sum.transfer.bytes, 0);
  // Both placements of a request are on record.
  std::map<RequestId, int> placements;
  for (const Decision& d : snapshot->decisions) {
    if (d.placement) placements[d.request] |= d.by ? 2 : 1;
    if (!d.placement) continue;
    EXPECT_EQ(d.role == Role::kDecode, d.placement->instance.value >= 2);
  }
  EXPECT_TRUE(std::any_of(placements.begin(), placements.end(),
                          [](const auto& p) { return p.second == 3; }));
}

TEST(LocalHandoff, CancelReachesARequestWhereverItIs) {
  RunningCluster c(apart(1, 2));
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 60;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(c.submit(id, 10 + id % 30, 300));
    if (id % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200 * (id % 7)));
    if (id > 4) c.cluster->cancel(RequestId{id - 4});
  }
  for (std::uint64_t id = 1; id <= kRequests; ++id) c.cluster->cancel(RequestId{id});
  ASSERT_TRUE(c.recorder.wait_finished(kRequests));
  EXPECT_EQ(c.recorder.violations(), 0);
  wait_empty(*c.cluster);
}

TEST(LocalHandoff, ALostDecodeInstanceEndsOnlyWhatRanThere) {
  ClusterSetup setup = apart(1, 2);
  setup.failure = PacedRunner::Failure::kThrow;
  setup.failing = 1;
  setup.fail_at = 40;
  RunningCluster c(setup);
  ASSERT_TRUE(c.wait_ready());
  constexpr std::uint64_t kRequests = 60;
  for (std::uint64_t id = 1; id <= kRequests; ++id) ASSERT_TRUE(c.submit(id, 20, 30));
  ASSERT_TRUE(c.recorder.wait_finished(kRequests));
  std::uint64_t right = 0;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    const auto answer = c.recorder.answer(id);
    if (answer.finish == FinishReason::kError) continue;
    const auto r = c.request(id, 20, 30);
    EXPECT_EQ(answer.tokens, c.model.expected_output(r->prompt, 30)) << id;
    ++right;
  }
  EXPECT_GT(right, kRequests / 2);
  EXPECT_EQ(c.recorder.violations(), 0);
}

TEST(LocalHandoff, StopEndsWhatIsOnItsWay) {
  for (int i = 0; i < 10; ++i) {
    RunningCluster c(apart(2, 1));
    ASSERT_TRUE(c.wait_ready());
    for (std::uint64_t id = 1; id <= 30; ++id) ASSERT_TRUE(c.submit(id, 20, 200));
    std::this_thread::sleep_for(std::chrono::milliseconds(2 * i));
    c.cluster->stop();
    // A decode instance that has just begun may show a token after the end; gateways drop it.
    EXPECT_GE(c.recorder.finished(), 30U);
    for (std::uint64_t id = 1; id <= 30; ++id) {
      EXPECT_NE(c.recorder.answer(id).finish, FinishReason::kNone) << id;
    }
  }
}

TEST(LocalHandoff, RolesNeedOneArena) {
  RunningCluster c(apart(1, 1));
  std::vector<LocalInstance> decode_only;
  decode_only.push_back({{}, nullptr, nullptr, Role::kDecode});
  const auto started =
      LocalCluster::start({}, std::move(decode_only), c.samplers, c.clock, c.recorder);
  EXPECT_EQ(started.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
