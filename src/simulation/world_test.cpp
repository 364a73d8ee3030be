#include "simulation/world.h"

#include <gtest/gtest.h>

#include "simulation/summary.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

NodeOptions node_options(std::int32_t blocks = 2000) {
  NodeOptions node;
  node.engine.max_context = 1 << 20;
  node.engine.max_running = 64;
  node.engine.batch.max_step_tokens = 512;
  node.engine.kv.num_blocks = blocks;
  node.engine.kv.window.block_tokens = 16;
  return node;
}

struct Simulated {
  explicit Simulated(const Trace& t, WorldOptions options, double slower = 1)
      : trace(t),
        device(*built_in_device("h100-8b")),
        devices(options.nodes.size(), &device),
        model(make_trace_model(trace, devices)),
        world(std::move(options), trace, *model) {
    for (std::vector<double>* table : {&device.dense_s, &device.head_s}) {
      for (double& seconds : *table) seconds *= slower;
    }
    for (double* seconds :
         {&device.step_s, &device.decode_row_s, &device.decode_context_s, &device.prefill_chunk_s,
          &device.prefill_token_s, &device.prefill_pair_s}) {
      *seconds *= slower;
    }
  }
  const Trace& trace;
  DeviceProfile device;
  std::vector<const DeviceProfile*> devices;
  std::unique_ptr<SimulatedModel> model;
  World world;
};

WorldOptions cluster(std::size_t nodes, std::uint64_t seed = 1) {
  WorldOptions options;
  options.nodes.assign(nodes, node_options());
  options.seed = seed;
  options.sample_interval = 1s;
  return options;
}

TEST(World, EveryRequestGetsItsTokens) {
  const Trace trace = synthesize({.requests = 300, .rate = 20, .seed = 3});
  Simulated run(trace, cluster(3));
  ASSERT_TRUE(run.world.run());
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    const Answer& a = run.world.answers()[i];
    EXPECT_EQ(a.finish, FinishReason::kStop) << i;
    EXPECT_EQ(a.tokens, trace.requests[i].output_tokens) << i;
    EXPECT_GT(a.first, a.arrival);
    EXPECT_GE(a.last, a.first);
  }
  EXPECT_TRUE(run.world.violations().empty());
  const Summary s = summarize(run.world, trace, run.devices, {});
  EXPECT_EQ(s.completed, 300U);
  EXPECT_EQ(s.good, 300U);
  EXPECT_GT(s.utilization, 0.05);
  EXPECT_LT(s.utilization, 1.0);
  EXPECT_GE(s.imbalance, 1.0);
}

TEST(World, OneRequestTakesWhatTheProfileSays) {
  Trace trace;
  trace.requests.push_back({.prompt_tokens = 1300, .output_tokens = 11});
  WorldOptions options = cluster(1);
  options.network.jitter = {};
  Simulated run(trace, options);
  ASSERT_TRUE(run.world.run());
  const Answer& a = run.world.answers()[0];
  // The first token is drawn by the last chunk; then two ways over the network.
  const double first = run.device.prefill_seconds(1300, 512) + 2 * 100e-6;
  EXPECT_NEAR(to_seconds(a.first - a.arrival), first, 1e-6);
  double rest = 0;
  for (int i = 0; i < 10; ++i) {
    StepWork work;
    work.add(1, 1300 + i, true);
    rest += run.device.seconds(work);
  }
  EXPECT_NEAR(to_seconds(a.last - a.first), rest, 1e-6);
  const Summary s = summarize(run.world, trace, run.devices, {});
  EXPECT_NEAR(s.gap_s.mean, rest / 10, 1e-6);
  EXPECT_NEAR(s.gap_s.p99, rest / 10, 0.02 * rest / 10);
  EXPECT_NEAR(s.longest_gap_s.p50, rest / 10, 0.02 * rest / 10);
}

TEST(World, TheSameSeedGivesTheSameRunAndAnotherDoesNot) {
  const Trace trace = synthesize({.requests = 200, .rate = 40, .seed = 5});
  const auto hash = [&](std::uint64_t seed) {
    Simulated run(trace, cluster(4, seed));
    EXPECT_TRUE(run.world.run());
    return run.world.hash();
  };
  EXPECT_EQ(hash(7), hash(7));
  EXPECT_NE(hash(7), hash(8));
}

TEST(World, AFollowerComesAfterItsLeaderHasEnded) {
  Trace trace;
  trace.requests.push_back({.prompt_tokens = 100, .output_tokens = 50});
  trace.requests.push_back({.arrival = 3s, .after = 0, .prompt_tokens = 150, .output_tokens = 5});
  Simulated run(trace, cluster(2));
  ASSERT_TRUE(run.world.run());
  EXPECT_EQ(run.world.answers()[1].arrival, run.world.answers()[0].last + 3s);
}

TEST(World, ATraceOfSharedBlocksFindsThemInTheCache) {
  Trace trace;
  trace.block_tokens = 512;
  trace.blocks = {1, 2, 3};
  trace.requests.push_back({.prompt_tokens = 1500, .output_tokens = 3, .num_blocks = 3});
  trace.requests.push_back(
      {.arrival = 2s, .prompt_tokens = 1400, .output_tokens = 3, .num_blocks = 2});
  Simulated run(trace, cluster(2));
  ASSERT_TRUE(run.world.run());
  EXPECT_EQ(run.world.answers()[1].cached, 1024);
  EXPECT_EQ(run.world.answers()[0].instance, run.world.answers()[1].instance);
}

TEST(World, WhatIsLostGoesOnElsewhere) {
  const Trace trace = synthesize({.requests = 400, .rate = 20, .seed = 9});
  WorldOptions options = cluster(3);
  options.gone_after = 3s;
  options.faults = {{.at = 4s, .kind = FaultKind::kCrash, .instance = 0, .length = 6s},
                    {.at = 8s, .kind = FaultKind::kHang, .instance = 1, .length = 1s},
                    {.at = 10s, .kind = FaultKind::kPartition, .instance = 1, .length = 5s},
                    {.at = 15s, .kind = FaultKind::kDrain, .instance = 2, .length = 4s}};
  Simulated run(trace, options);
  ASSERT_TRUE(run.world.run());
  const Summary s = summarize(run.world, trace, run.devices, {});
  EXPECT_EQ(s.completed, 400U);
  EXPECT_EQ(s.failed, 0U);
  EXPECT_EQ(run.world.nodes()[0]->incarnation().value, 2U);
  EXPECT_EQ(run.world.nodes()[1]->incarnation().value, 2U);  // it was given up, and told so
  EXPECT_TRUE(run.world.violations().empty());
}

// A fresh engine's step-time model is a guess: of a laptop's small model.
TEST(World, ARestartedInstanceGetsItsShareOfABurst) {
  for (const double slower : {0.1, 1.0, 100.0}) {
    SCOPED_TRACE(slower);
    Trace trace = synthesize({.requests = 200, .rate = 10 / slower, .seed = 4});
    const Duration calm = trace.requests.back().arrival + from_seconds(300 * slower);
    constexpr int kBurst = 8;
    for (int i = 0; i < kBurst; ++i) {
      trace.requests.push_back({.arrival = calm, .prompt_tokens = 200, .output_tokens = 50});
    }
    WorldOptions options = cluster(2);
    options.faults = {{.at = calm - 60s, .kind = FaultKind::kCrash, .instance = 0, .length = 10s}};
    Simulated run(trace, options, slower);
    ASSERT_TRUE(run.world.run());
    int there = 0;
    for (std::size_t i = trace.requests.size() - kBurst; i < trace.requests.size(); ++i) {
      there += run.world.answers()[i].instance == InstanceId{0} ? 1 : 0;
    }
    EXPECT_NEAR(there, kBurst / 2, 1);
  }
}

TEST(World, WhoLeavesFreesWhatItHolds) {
  Trace trace;
  trace.requests.push_back({.prompt_tokens = 400, .output_tokens = 5000, .cancel_after = 1s});
  Simulated run(trace, cluster(1));
  ASSERT_TRUE(run.world.run());
  EXPECT_EQ(run.world.answers()[0].finish, FinishReason::kCancelled);
  EXPECT_LT(run.world.answers()[0].tokens, 1000);
  run.world.run_for(1s);
  EXPECT_EQ(run.world.nodes()[0]->engine()->load().kv.granted_blocks, 0);
}

}  // namespace
}  // namespace sluice
