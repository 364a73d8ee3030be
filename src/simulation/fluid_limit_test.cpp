#include "simulation/fluid_limit.h"

#include <gtest/gtest.h>

#include "base/check.h"
#include "simulation/world.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

NodeOptions node_of(Role role, std::int32_t blocks, bool caches = false) {
  NodeOptions node;
  node.role = role;
  node.engine.max_context = 1 << 20;
  node.engine.max_running = 128;
  node.engine.batch.max_step_tokens = 1024;
  node.engine.kv.num_blocks = blocks;
  node.engine.kv.prefix_cache = caches;
  node.engine.kv.window.block_tokens = 64;
  node.engine.kv.window.step_token_budget = 1024;
  return node;
}

struct Outcome {
  Summary summary;
  FluidLimit limit;
};

Outcome run(const Trace& trace, WorldOptions options, const ServiceLevel& level) {
  const DeviceProfile device = *built_in_device("h100-8b");
  const std::vector<const DeviceProfile*> devices(options.nodes.size(), &device);
  const auto model = make_trace_model(trace, devices);
  World world(std::move(options), trace, *model);
  EXPECT_TRUE(world.run());
  return {summarize(world, trace, devices, level),
          fluid_limit(trace, world.options().nodes, devices, level)};
}

// Blocks that many share, and sessions.
Trace shared_trace(std::uint64_t seed) {
  Trace trace = synthesize(
      {.requests = 50, .rate = 40, .median_prompt = 2000, .median_output = 20, .seed = seed});
  trace.block_tokens = 256;
  for (std::uint64_t id = 0; id < 64; ++id) trace.blocks.push_back(id);
  Rng rng(seed);
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    TraceRequest& r = trace.requests[i];
    r.first_block = static_cast<std::uint32_t>(rng.below(8) * 8);
    r.num_blocks = static_cast<std::uint32_t>(std::min<std::int32_t>(8, r.prompt_tokens / 256));
    if (i > 0 && rng.below(5) == 0) {
      r.after = static_cast<std::int32_t>(rng.below(i));
      r.arrival = 100ms;
    }
  }
  put_in_order(trace);
  return trace;
}

TEST(FluidLimit, NoPolicyExceedsIt) {
  int tight = 0;
  for (const double rate : {20.0, 200.0}) {
    for (const bool shares : {false, true}) {
      Trace trace = shares ? shared_trace(3)
                           : synthesize({.requests = 50,
                                         .rate = 40,
                                         .median_prompt = 1500,
                                         .median_output = 20,
                                         .seed = 5});
      scale_rate(trace, rate / 40);
      for (const char* policy : policy_names()) {
        for (const bool apart : {false, true}) {
          // Debug builds check the whole prefix index after each step.
          if (shares && (apart || policy != std::string_view("forecast"))) continue;
          SCOPED_TRACE(fmt::format("{} at {}, {} {}", policy, rate, shares, apart));
          WorldOptions options;
          options.policy = policy;
          options.nodes.assign(2, node_of(Role::kUnified, 2000, shares));
          if (apart) options.nodes = {node_of(Role::kPrefill, 2000), node_of(Role::kDecode, 2000)};
          const ServiceLevel level{.ttft_s = 0.3, .ttft_prefill_factor = 1, .tpot_s = 0.02};
          const auto [summary, limit] = run(trace, options, level);
          EXPECT_LE(summary.good, limit.good);
          EXPECT_LE(summary.goodput, limit.goodput * (1 + 1e-9));
          if (summary.completed < summary.requests) continue;
          EXPECT_LE(summary.output_tokens_per_s, limit.output_tokens_per_s);
          tight += limit.good < summary.requests ? 1 : 0;
        }
      }
    }
  }
  EXPECT_GT(tight, 0) << "it never said anything";
}

TEST(FluidLimit, OneRequestAloneIsNearIt) {
  Trace trace;
  trace.requests.push_back({.prompt_tokens = 1024, .output_tokens = 400});
  WorldOptions options;
  options.nodes = {node_of(Role::kUnified, 2000)};
  const auto [summary, limit] = run(trace, options, {});
  EXPECT_LE(summary.output_tokens_per_s, limit.output_tokens_per_s);
  EXPECT_GE(summary.output_tokens_per_s, 0.9 * limit.output_tokens_per_s);
  EXPECT_EQ(limit.good, 1U);
}

TEST(FluidLimit, ABurstOfPromptsIsBoundByTheirWork) {
  Trace trace;
  for (int i = 0; i < 100; ++i) {
    trace.requests.push_back({.prompt_tokens = 8192, .output_tokens = 1});
  }
  WorldOptions options;
  options.nodes = {node_of(Role::kUnified, 20000)};
  const ServiceLevel level{.ttft_s = 5, .ttft_prefill_factor = 0, .tpot_s = 1};
  const auto [summary, limit] = run(trace, options, level);
  EXPECT_LT(limit.good, 30U);
  EXPECT_LE(summary.good, limit.good);
  EXPECT_GE(summary.good + 3, limit.good);
  // Nobody is good where the limit is below one prompt's own time.
  const auto never = run(trace, options, {.ttft_s = 0.01, .ttft_prefill_factor = 0, .tpot_s = 1});
  EXPECT_EQ(never.limit.good, 0U);
}

}  // namespace
}  // namespace sluice
