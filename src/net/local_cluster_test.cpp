#include "net/local_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "net/net_test_support.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

TEST(LocalCluster, AnswersManyRequestsOnEveryInstance) {
  ClusterSetup setup{.instances = 3};
  setup.cluster.scheduler.queue_limit = 1000;
  RunningCluster c(setup);
  constexpr std::uint64_t kRequests = 300;
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    ASSERT_TRUE(c.submit(id, 5 + id % 40, static_cast<std::int32_t>(1 + id % 20)));
  }
  ASSERT_TRUE(c.recorder.wait_finished(kRequests));
  for (std::uint64_t id = 1; id <= kRequests; ++id) {
    const auto r = c.request(id, 5 + id % 40, static_cast<std::int32_t>(1 + id % 20));
    const auto answer = c.recorder.answer(id);
    EXPECT_EQ(answer.finish, FinishReason::kLength) << answer.error.message;
    EXPECT_EQ(answer.tokens, c.model.expected_output(r->prompt, r->max_tokens)) << id;
  }
  EXPECT_EQ(c.recorder.violations(), 0);
  c.cluster->stop();
  const auto snapshot = c.cluster->snapshot();
  EXPECT_EQ(snapshot->queued_requests, 0);
  EXPECT_FALSE(snapshot->decisions.empty());
  std::map<InstanceId, int> used;
  for (const Decision& d : snapshot->decisions) {
    if (d.placement) ++used[d.placement->instance];
  }
  EXPECT_EQ(used.size(), 3U);
}

TEST(LocalCluster, PublishesWhatItDoes) {
  RunningCluster c({.instances = 2});
  ASSERT_TRUE(c.wait_ready());
  for (std::uint64_t id = 1; id <= 20; ++id) ASSERT_TRUE(c.submit(id, 30, 10));
  ASSERT_TRUE(c.recorder.wait_finished(20));
  std::shared_ptr<const ClusterSnapshot> s;
  std::int64_t generated = 0;
  for (int i = 0; i < 2000 && generated < 200; ++i) {
    std::this_thread::sleep_for(5ms);
    s = c.cluster->snapshot();
    generated = 0;
    for (const InstanceSnapshot& instance : s->instances) {
      generated += instance.stats.generated_tokens;
    }
  }
  EXPECT_EQ(generated, 200);
  ASSERT_EQ(s->instances.size(), 2U);
  EXPECT_EQ(s->instances[0].report.total_blocks, 256);
  EXPECT_EQ(s->instances[0].report.block_tokens, 4);
  EXPECT_EQ(s->instances[0].ledger_tokens, 0);
  std::int64_t placed = 0;
  for (const auto& p : s->placements) {
    EXPECT_EQ(p.policy, "forecast");
    placed += p.reason == "placed" || p.reason == "placed_relaxed" ? p.count : 0;
  }
  EXPECT_EQ(placed, 20);
  EXPECT_GE(s->placement_count, 20);
}

TEST(LocalCluster, CancelEndsARequestAnywhere) {
  ClusterSetup setup{.instances = 1, .step = 2ms};
  setup.engine.max_running = 1;
  setup.cluster.placement.relaxed_waiting = 1;
  RunningCluster c(setup);
  ASSERT_TRUE(c.submit(1, 10, 500));  // runs
  ASSERT_TRUE(c.recorder.wait_tokens(RequestId{1}, 3));
  ASSERT_TRUE(c.submit(2, 10, 500));  // waits at the instance
  ASSERT_TRUE(c.submit(3, 10, 500));  // waits in the queue
  c.cluster->cancel(RequestId{3});
  c.cluster->cancel(RequestId{2});
  c.cluster->cancel(RequestId{77});  // nobody
  c.cluster->cancel(RequestId{1});
  ASSERT_TRUE(c.recorder.wait_finished(3));
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(c.recorder.answer(id).finish, FinishReason::kCancelled);
  }
  EXPECT_EQ(c.recorder.violations(), 0);
}

TEST(LocalCluster, RefusesWithNumbers) {
  ClusterSetup setup{.instances = 1, .step = 20ms};
  setup.engine.max_running = 1;
  setup.cluster.placement.relaxed_waiting = 1;
  setup.cluster.scheduler.queue_limit = 2;
  RunningCluster c(setup);
  ASSERT_TRUE(c.wait_ready());
  ASSERT_TRUE(c.submit(1, 2000, 100));
  ASSERT_TRUE(c.recorder.wait_finished(1));
  EXPECT_EQ(c.recorder.answer(1).error.code, ErrorCode::kNeverFits);
  EXPECT_THAT(c.recorder.answer(1).error.message,
              HasSubstr("need 525 KV blocks; the largest instance has 256"));

  for (std::uint64_t id = 2; id <= 12; ++id) ASSERT_TRUE(c.submit(id, 10, 300));
  ASSERT_TRUE(c.recorder.wait_finished(2));
  int busy = 0;
  for (std::uint64_t id = 2; id <= 12; ++id) {
    const auto answer = c.recorder.answer(id);
    if (answer.error.code != ErrorCode::kBusy || answer.finish != FinishReason::kError) continue;
    ++busy;
    EXPECT_THAT(answer.error.message, HasSubstr("(limit 2)"));
    EXPECT_GE(answer.error.retry_after_s, 1);
  }
  EXPECT_GE(busy, 1);
}

void expect_right(RunningCluster& c, std::uint64_t id, std::size_t prompt,
                  std::int32_t max_tokens) {
  const auto answer = c.recorder.answer(id);
  EXPECT_EQ(answer.finish, FinishReason::kLength) << id << ": " << answer.error.message;
  const auto request = c.request(id, prompt, max_tokens);
  EXPECT_EQ(answer.tokens, c.model.expected_output(request->prompt, max_tokens)) << id;
}

TEST(LocalCluster, AFailedStepIsNotSeen) {
  RunningCluster c(
      {.instances = 2, .step = 500us, .failure = PacedRunner::Failure::kError, .fail_at = 10});
  for (std::uint64_t id = 1; id <= 40; ++id) ASSERT_TRUE(c.submit(id, 20, 30));
  ASSERT_TRUE(c.recorder.wait_finished(40));
  for (std::uint64_t id = 1; id <= 40; ++id) expect_right(c, id, 20, 30);
  EXPECT_EQ(c.recorder.violations(), 0);
  c.cluster->stop();
  EXPECT_GE(c.cluster->snapshot()->retries, 1);
}

TEST(LocalCluster, ALostEngineIsNotSeenWhereAnotherServes) {
  RunningCluster c(
      {.instances = 2, .step = 500us, .failure = PacedRunner::Failure::kThrow, .fail_at = 10});
  for (std::uint64_t id = 1; id <= 60; ++id) ASSERT_TRUE(c.submit(id, 20, 30));
  ASSERT_TRUE(c.recorder.wait_finished(60));
  for (std::uint64_t id = 1; id <= 60; ++id) expect_right(c, id, 20, 30);
  for (std::uint64_t id = 101; id <= 110; ++id) ASSERT_TRUE(c.submit(id, 20, 5));
  ASSERT_TRUE(c.recorder.wait_finished(70));
  for (std::uint64_t id = 101; id <= 110; ++id) expect_right(c, id, 20, 5);
  EXPECT_TRUE(c.cluster->ready());
  EXPECT_EQ(c.recorder.violations(), 0);
}

TEST(LocalCluster, TheLossOfTheOnlyEngineEndsEveryRequestWithItsReason) {
  RunningCluster c(
      {.instances = 1, .step = 500us, .failure = PacedRunner::Failure::kThrow, .fail_at = 10});
  for (std::uint64_t id = 1; id <= 20; ++id) ASSERT_TRUE(c.submit(id, 20, 30));
  ASSERT_TRUE(c.recorder.wait_finished(1));
  EXPECT_EQ(c.recorder.answer(1).finish, FinishReason::kError);
  EXPECT_EQ(c.recorder.answer(1).error.code, ErrorCode::kUnavailable);
  EXPECT_THAT(c.recorder.answer(1).error.message, HasSubstr("the device is on fire"));
  c.cluster->stop();
  EXPECT_EQ(c.recorder.finished(), 20U);
  EXPECT_EQ(c.recorder.violations(), 0);
}

TEST(LocalCluster, DrainFinishesWhatWasAccepted) {
  RunningCluster c({.instances = 2});
  for (std::uint64_t id = 1; id <= 50; ++id) ASSERT_TRUE(c.submit(id, 20, 20));
  c.cluster->drain();
  EXPECT_FALSE(c.cluster->ready());
  const Status refused = c.submit(51, 10, 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  EXPECT_TRUE(c.cluster->wait_drained(60s));
  EXPECT_EQ(c.recorder.finished(), 50U);
  for (std::uint64_t id = 1; id <= 50; ++id) {
    EXPECT_EQ(c.recorder.answer(id).finish, FinishReason::kLength);
  }
  EXPECT_TRUE(c.cluster->snapshot() != nullptr);
}

TEST(LocalCluster, StopEndsEverything) {
  ClusterSetup setup{.instances = 2, .step = 2ms};
  setup.engine.max_running = 2;
  RunningCluster c(setup);
  for (std::uint64_t id = 1; id <= 100; ++id) ASSERT_TRUE(c.submit(id, 20, 200));
  ASSERT_TRUE(c.recorder.wait_tokens(RequestId{1}, 1));
  c.cluster->stop();
  EXPECT_EQ(c.recorder.finished(), 100U);
  EXPECT_EQ(c.recorder.violations(), 0);
  const Status refused = c.submit(101, 10, 10);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnavailable);
  c.cluster->stop();  // again does nothing
}

// Clients on many threads that submit and cancel while the cluster stops: still
// one finishing event for each accepted request.
TEST(LocalCluster, ExactlyOneEndUnderStress) {
  for (int round = 0; round < 5; ++round) {
    RunningCluster c({.instances = 3, .step = 100us});
    std::atomic<std::size_t> accepted{0};
    std::vector<std::thread> clients;
    for (std::uint64_t t = 0; t < 4; ++t) {
      clients.emplace_back([&, t] {
        for (std::uint64_t k = 1; k <= 150; ++k) {
          const std::uint64_t id = t * 1000 + k;
          if (c.submit(id, 3 + k % 50, static_cast<std::int32_t>(1 + k % 40))) ++accepted;
          if (k % 3 == 0) c.cluster->cancel(RequestId{id});
          if (k % 50 == 0) std::this_thread::sleep_for(2ms);
        }
      });
    }
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
    if (round % 2 == 1) {
      for (auto& t : clients) t.join();
      clients.clear();
    }
    c.cluster->stop();
    for (auto& t : clients) t.join();
    EXPECT_EQ(c.recorder.finished(), accepted.load()) << "round " << round;
    EXPECT_EQ(c.recorder.violations(), 0);
  }
}

TEST(LocalCluster, AnIdleServerSleeps) {
  RunningCluster c({.instances = 4});
  ASSERT_TRUE(c.submit(1, 10, 5));
  ASSERT_TRUE(c.recorder.wait_finished(1));
  std::this_thread::sleep_for(300ms);
  const double before = cpu_seconds();
  std::this_thread::sleep_for(1s);
  EXPECT_LT(cpu_seconds() - before, 0.05);
}

TEST(LocalCluster, StartSaysWhatIsWrong) {
  SteadyClock clock;
  SharedRecorder recorder;
  FakeSamplerFactory samplers({});
  const auto none = LocalCluster::start({}, {}, samplers, clock, recorder);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::kInvalidArgument);
  std::vector<LocalInstance> one;
  one.push_back({{}, std::make_unique<FakeModelRunner>(FakeModelOptions{})});
  const auto policy =
      LocalCluster::start({.policy = "best"}, std::move(one), samplers, clock, recorder);
  ASSERT_FALSE(policy);
  EXPECT_THAT(policy.error().message, HasSubstr("there are forecast, "));
}

}  // namespace
}  // namespace sluice
