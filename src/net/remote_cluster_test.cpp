// A gateway's cluster and instances over real sockets, in one process; the model is fake.
#include "net/remote_cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/drain_call.h"
#include "net/instance_process.h"
#include "net/net_test_support.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

constexpr std::uint64_t kModel = 0xfeed;

template <class Condition>
bool eventually(const Condition& condition, std::chrono::seconds limit = 30s) {
  const auto until = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

// A runner whose steps can be made to hang, as a device may.
class HangingRunner final : public ModelRunner {
 public:
  HangingRunner(FakeModelOptions options, std::atomic<bool>& hang) : inner_(options), hang_(hang) {}
  void bind(const KvView& kv) override { inner_.bind(kv); }
  Result<StepOutput> run(const StepInput& input) override {
    do {
      std::this_thread::sleep_for(300us);
    } while (hang_.load());
    return inner_.run(input);
  }

 private:
  FakeModelRunner inner_;
  std::atomic<bool>& hang_;
};

struct Gateway {
  explicit Gateway(const Clock& clock, RemoteClusterOptions options = {}) {
    options.name = "test";
    options.model = kModel;
    options.model_name = "fake";
    options.vocabulary = 1 << 20;
    auto started = RemoteCluster::start(std::move(options), clock, recorder);
    CHECK(started.has_value());
    cluster = std::move(*started);
  }
  [[nodiscard]] std::string address() const { return fmt::format("127.0.0.1:{}", cluster->port()); }
  // With reports of so many instances that are not draining.
  bool wait_instances(std::size_t count) {
    return eventually([&] {
      std::size_t serving = 0;
      for (const auto& i : cluster->snapshot()->instances) serving += i.report.draining ? 0 : 1;
      return serving == count;
    });
  }
  SharedRecorder recorder;
  std::unique_ptr<RemoteCluster> cluster;
};

class RemoteClusterTest : public testing::Test {
 protected:
  std::unique_ptr<InstanceProcess> instance(std::string name, std::vector<std::string> join,
                                            InstanceProcessOptions options = {},
                                            EngineOptions engine = {}) {
    options.name = std::move(name);
    options.join = std::move(join);
    if (options.model == 0) options.model = kModel;
    options.model_name = "fake";
    options.vocabulary = 1 << 20;
    engine.kv.num_blocks = model_options.num_blocks;
    engine.kv.window.block_tokens = model_options.block_tokens;
    engine.kv.window.step_token_budget = engine.batch.max_step_tokens;
    auto started = InstanceProcess::start(
        options, {engine, std::make_unique<HangingRunner>(model_options, hang), nullptr}, samplers,
        clock);
    CHECK(started.has_value());
    return std::move(*started);
  }
  std::unique_ptr<Request> request(std::uint64_t id, std::size_t prompt, std::int32_t max_tokens) {
    return numbered_request(id, prompt, max_tokens, clock.now());
  }
  void submit(Gateway& gateway, std::uint64_t first, std::uint64_t last, std::int32_t max_tokens) {
    for (std::uint64_t id = first; id <= last; ++id) {
      ASSERT_TRUE(gateway.cluster->submit(request(id, 20, max_tokens)));
    }
  }
  void expect_right(Gateway& gateway, std::uint64_t first, std::uint64_t last,
                    std::int32_t max_tokens) {
    for (std::uint64_t id = first; id <= last; ++id) {
      const auto answer = gateway.recorder.answer(id);
      EXPECT_EQ(answer.finish, FinishReason::kLength) << id << ": " << answer.error.message;
      EXPECT_EQ(answer.tokens, model.expected_output(request(id, 20, 1)->prompt, max_tokens)) << id;
    }
    EXPECT_EQ(gateway.recorder.violations(), 0);
  }

  SteadyClock clock;
  FakeModelOptions model_options{.num_blocks = 256, .block_tokens = 4};
  FakeSamplerFactory samplers{model_options};
  FakeModelRunner model{model_options};
  std::atomic<bool> hang{false};
};

TEST_F(RemoteClusterTest, AnswersComeOverTheWireFromEveryInstance) {
  Gateway gateway(clock);
  EXPECT_FALSE(gateway.cluster->ready());
  const auto a = instance("a", {gateway.address()});
  const auto b = instance("b", {gateway.address()});
  ASSERT_TRUE(gateway.wait_instances(2));
  EXPECT_TRUE(gateway.cluster->ready());
  submit(gateway, 1, 100, 20);
  ASSERT_TRUE(gateway.recorder.wait_finished(100));
  expect_right(gateway, 1, 100, 20);
  ASSERT_TRUE(eventually([&] {
    std::int64_t generated = 0;
    for (const auto& i : gateway.cluster->snapshot()->instances) {
      generated += i.stats.generated_tokens;
      if (i.stats.kv.granted_blocks != 0 || i.ledger_tokens != 0) return false;
    }
    return generated == 2000;
  }));
  std::map<std::string, std::int64_t> generated;
  for (const auto& i : gateway.cluster->snapshot()->instances) {
    generated[i.name] = i.stats.generated_tokens;
  }
  EXPECT_THAT(generated, testing::UnorderedElementsAre(testing::Pair("a", testing::Gt(0)),
                                                       testing::Pair("b", testing::Gt(0))));
  EXPECT_EQ(a->active(), 0);
}

TEST_F(RemoteClusterTest, RequestsMayComeBeforeAnyInstance) {
  Gateway gateway(clock);
  submit(gateway, 1, 10, 5);
  const auto a = instance("a", {gateway.address()});
  ASSERT_TRUE(gateway.recorder.wait_finished(10));
  expect_right(gateway, 1, 10, 5);
}

TEST_F(RemoteClusterTest, CancelReachesTheInstance) {
  Gateway gateway(clock);
  const auto a = instance("a", {gateway.address()});
  submit(gateway, 1, 4, 700);
  ASSERT_TRUE(gateway.recorder.wait_tokens(RequestId{1}, 3));
  for (std::uint64_t id = 1; id <= 4; ++id) gateway.cluster->cancel(RequestId{id});
  ASSERT_TRUE(gateway.recorder.wait_finished(4));
  for (std::uint64_t id = 1; id <= 4; ++id) {
    EXPECT_EQ(gateway.recorder.answer(id).finish, FinishReason::kCancelled);
  }
  EXPECT_TRUE(eventually([&] { return a->active() == 0; }));
}

TEST_F(RemoteClusterTest, AnInstanceThatStopsIsNotSeen) {
  Gateway gateway(clock);
  auto a = instance("a", {gateway.address()});
  const auto b = instance("b", {gateway.address()});
  ASSERT_TRUE(gateway.wait_instances(2));
  submit(gateway, 1, 40, 200);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(gateway.recorder.wait_tokens(RequestId{id}, 2));
  }
  a.reset();
  ASSERT_TRUE(gateway.recorder.wait_finished(40));
  expect_right(gateway, 1, 40, 200);
  EXPECT_GT(gateway.cluster->snapshot()->retries, 0);
}

TEST_F(RemoteClusterTest, ARestartedInstanceIsANewOne) {
  Gateway gateway(clock);
  auto a = instance("a", {gateway.address()});
  ASSERT_TRUE(gateway.wait_instances(1));
  const auto before = gateway.cluster->snapshot()->instances[0].report;
  submit(gateway, 1, 5, 200);
  ASSERT_TRUE(gateway.recorder.wait_tokens(RequestId{1}, 2));
  a.reset();
  a = instance("a", {gateway.address()});
  ASSERT_TRUE(gateway.recorder.wait_finished(5));
  expect_right(gateway, 1, 5, 200);  // they waited for it
  const auto after = gateway.cluster->snapshot()->instances[0].report;
  EXPECT_EQ(after.instance, before.instance);
  EXPECT_GT(after.incarnation, before.incarnation);
}

TEST_F(RemoteClusterTest, AHungInstanceIsGivenUpAndMayComeBack) {
  RemoteClusterOptions options;
  options.scheduler.silence_limit = 3s;
  options.placement.max_report_age = 3s;
  Gateway gateway(clock, options);
  const auto a = instance("a", {gateway.address()});
  ASSERT_TRUE(gateway.wait_instances(1));
  submit(gateway, 1, 3, 100);
  ASSERT_TRUE(gateway.recorder.wait_tokens(RequestId{1}, 2));
  hang.store(true);
  ASSERT_TRUE(eventually([&] { return gateway.cluster->snapshot()->instances.empty(); }));
  EXPECT_EQ(gateway.recorder.finished(), 0U);
  hang.store(false);
  ASSERT_TRUE(gateway.recorder.wait_finished(3));
  expect_right(gateway, 1, 3, 100);
  EXPECT_TRUE(eventually([&] { return a->active() == 0; }));
}

TEST_F(RemoteClusterTest, OrphansOfAGatewayAreCancelledAndOthersServed) {
  auto first = std::make_unique<Gateway>(clock);
  Gateway second(clock);
  const auto a = instance("a", {first->address(), second.address()});
  ASSERT_TRUE(first->wait_instances(1));
  ASSERT_TRUE(second.wait_instances(1));
  submit(*first, 1, 5, 800);
  submit(second, 101, 105, 100);
  ASSERT_TRUE(first->recorder.wait_tokens(RequestId{1}, 2));
  first.reset();
  EXPECT_TRUE(eventually([&] { return a->attached() == 1; }));
  ASSERT_TRUE(second.recorder.wait_finished(5));
  expect_right(second, 101, 105, 100);
  EXPECT_TRUE(eventually([&] { return a->active() == 0; }));
}

TEST_F(RemoteClusterTest, WhoDoesNotBelongIsRefused) {
  RemoteClusterOptions options;
  options.security.token = "a long secret";
  options.context = 100;
  Gateway gateway(clock, options);
  InstanceProcessOptions good;
  good.security = options.security;
  InstanceProcessOptions other_model = good;
  other_model.model = 0xbad;
  EngineOptions short_context;
  short_context.max_context = 99;
  InstanceProcessOptions no_token;
  InstanceProcessOptions wrong_token;
  wrong_token.security.token = "a long sekret";
  std::vector<std::unique_ptr<InstanceProcess>> refused;
  refused.push_back(instance("model", {gateway.address()}, other_model));
  refused.push_back(instance("context", {gateway.address()}, good, short_context));
  refused.push_back(instance("none", {gateway.address()}, no_token));
  refused.push_back(instance("wrong", {gateway.address()}, wrong_token));
  const auto a = instance("a", {gateway.address()}, good);
  ASSERT_TRUE(gateway.wait_instances(1));
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(gateway.cluster->snapshot()->instances.size(), 1U);
  EXPECT_EQ(gateway.cluster->snapshot()->instances[0].name, "a");
  for (const auto& i : refused) EXPECT_EQ(i->attached(), 0);
}

TEST_F(RemoteClusterTest, AnOperatorDrainsAnInstanceByItsName) {
  Gateway gateway(clock);
  const auto a = instance("a", {gateway.address()});
  const auto b = instance("b", {gateway.address()});
  ASSERT_TRUE(gateway.wait_instances(2));
  const Status unknown = drain_instance(gateway.address(), "c", {});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code, ErrorCode::kNotFound);
  EXPECT_THAT(unknown.error().message, HasSubstr("there are: "));
  ASSERT_TRUE(drain_instance(gateway.address(), "a", {}));
  ASSERT_TRUE(gateway.wait_instances(1));
  EXPECT_TRUE(a->drain_asked());
  submit(gateway, 1, 20, 5);
  ASSERT_TRUE(gateway.recorder.wait_finished(20));
  for (const auto& i : gateway.cluster->snapshot()->instances) {
    if (i.name == "a") {
      EXPECT_EQ(i.stats.generated_tokens, 0);
    }
  }
  EXPECT_EQ(drain_instance("127.0.0.1:1", "a", {}).error().code, ErrorCode::kUnavailable);
}

TEST_F(RemoteClusterTest, StopEndsEverything) {
  Gateway gateway(clock);
  const auto a = instance("a", {gateway.address()});
  ASSERT_TRUE(gateway.wait_instances(1));
  submit(gateway, 1, 50, 500);
  ASSERT_TRUE(gateway.recorder.wait_tokens(RequestId{1}, 1));
  gateway.cluster->stop();
  EXPECT_EQ(gateway.recorder.finished(), 50U);
  EXPECT_EQ(gateway.recorder.violations(), 0);
  EXPECT_FALSE(gateway.cluster->submit(request(51, 5, 5)));
  EXPECT_TRUE(eventually([&] { return a->active() == 0; }));
}

TEST_F(RemoteClusterTest, StartSaysWhatIsWrong) {
  SharedRecorder recorder;
  const auto error_of = [&](RemoteClusterOptions options) {
    options.name = "test";
    const auto started = RemoteCluster::start(std::move(options), clock, recorder);
    return started ? std::string("started") : started.error().message;
  };
  RemoteClusterOptions bad;
  bad.policy = "best";
  EXPECT_THAT(error_of(bad), HasSubstr("best"));
  bad = {};
  bad.listen = "nowhere";
  EXPECT_THAT(error_of(bad), HasSubstr("host:port"));
  bad.listen = "192.0.2.1:7";  // not of this machine
  EXPECT_THAT(error_of(bad), HasSubstr("cannot listen for instances at 192.0.2.1:7"));
  bad = {};
  bad.join = {"127.0.0.1:7070"};
  EXPECT_THAT(error_of(bad), HasSubstr("instances join it"));
  InstanceProcessOptions nobody;
  nobody.name = "x";
  LocalInstance fake{{}, std::make_unique<FakeModelRunner>(model_options), nullptr};
  EXPECT_FALSE(InstanceProcess::start(nobody, std::move(fake), samplers, clock));
}

}  // namespace
}  // namespace sluice
