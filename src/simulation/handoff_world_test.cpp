// Worlds in which prefill and decode are apart.
#include <gtest/gtest.h>

#include "simulation/summary.h"
#include "simulation/world.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

NodeOptions node_of(Role role, std::int32_t blocks) {
  NodeOptions node;
  node.role = role;
  node.engine.max_context = 1 << 20;
  node.engine.max_running = 64;
  node.engine.batch.max_step_tokens = 512;
  node.engine.kv.num_blocks = blocks;
  node.engine.kv.window.block_tokens = 16;
  node.engine.kv.prefix_cache = false;  // debug builds check the index whole after each step
  return node;
}

WorldOptions apart(std::size_t prefill, std::size_t decode, std::uint64_t seed = 1,
                   std::int32_t blocks = 2000) {
  WorldOptions options;
  options.nodes.assign(prefill, node_of(Role::kPrefill, blocks));
  options.nodes.insert(options.nodes.end(), decode, node_of(Role::kDecode, blocks));
  options.seed = seed;
  options.keep_tokens = true;
  return options;
}

struct Simulated {
  Simulated(const Trace& t, WorldOptions options)
      : trace(t),
        device(*built_in_device("h100-8b")),
        devices(options.nodes.size(), &device),
        model(make_trace_model(trace, devices)),
        world(std::move(options), trace, *model) {}

  HandoffCounts handoffs() const {
    HandoffCounts sum;
    for (const auto& node : world.nodes()) sum += node->handoffs();
    return sum;
  }
  // What the trace's sampler draws: one number after the other, in every life of a request.
  void expect_whole_answers() const {
    for (std::size_t i = 0; i < trace.requests.size(); ++i) {
      const Answer& a = world.answers()[i];
      ASSERT_EQ(a.finish, FinishReason::kStop) << i;
      ASSERT_EQ(a.tokens, trace.requests[i].output_tokens) << i;
      for (std::size_t n = 1; n < a.content.size(); ++n) {
        ASSERT_EQ(a.content[n], a.content[n - 1] + 1) << i << ", token " << n;
      }
    }
    EXPECT_TRUE(world.violations().empty());
  }
  void expect_nothing_held() const {
    for (const auto& node : world.nodes()) {
      SCOPED_TRACE(node->id().value);
      ASSERT_NE(node->engine(), nullptr);
      EXPECT_TRUE(node->idle());
      EXPECT_EQ(node->engine()->load().kv.granted_blocks, 0);
      EXPECT_EQ(node->handoff_agent()->stats().reservations, 0);
      EXPECT_EQ(node->handoff_agent()->stats().leaving, 0);
    }
    EXPECT_TRUE(world.scheduler().idle());
  }
  const Trace& trace;
  const DeviceProfile device;
  std::vector<const DeviceProfile*> devices;
  std::unique_ptr<SimulatedModel> model;
  World world;
};

TEST(HandoffWorld, PrefillInstancesHandOverAndDecodeInstancesGoOn) {
  const Trace trace = synthesize({.requests = 300, .rate = 20, .seed = 3});
  Simulated run(trace, apart(2, 3));
  ASSERT_TRUE(run.world.run());
  run.expect_whole_answers();
  const HandoffCounts counts = run.handoffs();
  EXPECT_GT(counts.moved, 250);
  EXPECT_EQ(counts.moved, counts.taken);
  EXPECT_LE(counts.moved + counts.stayed + counts.other_ends, 300);
  EXPECT_EQ(counts.refused, 0);
  // What was moved was the KV of whole prompts, and little more.
  std::int64_t prompts = 0;
  for (const TraceRequest& r : trace.requests) prompts += r.prompt_tokens;
  const std::int64_t token_bytes = NodeOptions{}.kv_token_bytes;
  EXPECT_GT(counts.bytes, prompts * token_bytes * 8 / 10);
  EXPECT_LT(counts.bytes, (prompts + 300 * (64 + 16)) * token_bytes);
  run.world.run_for(1s);
  run.expect_nothing_held();
  const Summary s = summarize(run.world, trace, run.devices, {});
  EXPECT_EQ(s.handoffs.moved, counts.moved);
  EXPECT_GT(s.second_s.p50, 0);
}

TEST(HandoffWorld, ASequenceRunsOnOneInstanceAtATime) {
  const Trace trace = synthesize({.requests = 60, .rate = 30, .seed = 8});
  Simulated run(trace, apart(2, 2));
  std::size_t looked = 0;
  run.world.after_step = [&](const Node&) {
    for (std::uint64_t id = 1; id <= trace.requests.size(); ++id) {
      int owners = 0;
      for (const auto& node : run.world.nodes()) {
        const Sequence* sequence = node->engine()->find(RequestId{id});
        owners += sequence != nullptr && sequence->here() ? 1 : 0;
      }
      ASSERT_LE(owners, 1) << id;
      looked += static_cast<std::size_t>(owners);
    }
  };
  ASSERT_TRUE(run.world.run());
  run.expect_whole_answers();
  EXPECT_GT(looked, 1000U);
}

TEST(HandoffWorld, WithoutRoomElsewhereItDecodesWhereItIs) {
  const Trace trace = synthesize({.requests = 60, .rate = 20, .seed = 3});
  Simulated alone(trace, apart(2, 0));
  ASSERT_TRUE(alone.world.run());
  alone.expect_whole_answers();
  EXPECT_EQ(alone.handoffs().moved, 0);

  WorldOptions crowded = apart(2, 1);
  crowded.nodes.back().engine.max_running = 2;
  crowded.handoff.patience = 500ms;
  Simulated run(trace, crowded);
  ASSERT_TRUE(run.world.run());
  run.expect_whole_answers();
  EXPECT_GT(run.handoffs().stayed, 0);
  EXPECT_GT(run.handoffs().moved, 0);
  run.world.run_for(1s);
  run.expect_nothing_held();
}

TEST(HandoffWorld, ASlowLinkMakesHandoffsLate) {
  const Trace trace = synthesize({.requests = 40, .rate = 2, .seed = 5});
  const auto sending_s = [&](double bytes_per_s) {
    WorldOptions options = apart(1, 1);
    options.network.kv_bytes_per_s = bytes_per_s;
    Simulated run(trace, options);
    EXPECT_TRUE(run.world.run());
    run.expect_whole_answers();
    const HandoffStats stats = run.world.nodes()[0]->handoff_agent()->stats();
    return stats.source.stages[static_cast<std::size_t>(HandoffStage::kSending)].sum;
  };
  EXPECT_GT(sending_s(5e8), 5 * sending_s(500e9));
}

TEST(HandoffWorld, TheSameSeedGivesTheSameRunAndAnotherDoesNot) {
  const Trace trace = synthesize({.requests = 200, .rate = 40, .seed = 5});
  const auto hash = [&](std::uint64_t seed) {
    WorldOptions options = apart(2, 4, seed);
    options.network.mail_loss = 0.05;
    options.faults = {{.at = 2s, .kind = FaultKind::kCrash, .instance = 3, .length = 1s}};
    Simulated run(trace, options);
    EXPECT_TRUE(run.world.run());
    return run.world.hash();
  };
  EXPECT_EQ(hash(7), hash(7));
  EXPECT_NE(hash(7), hash(8));
}

TEST(HandoffWorld, WhoeverChoosesAnswersAreWholeAndRunsRepeat) {
  const Trace trace = synthesize({.requests = 120, .rate = 30, .seed = 6});
  for (const char* text : {"central", "placement", "local/two-choices", "central/random"}) {
    SCOPED_TRACE(text);
    std::uint64_t hashes[2] = {};
    for (std::uint64_t& hash : hashes) {
      WorldOptions options = apart(2, 3, 4, 600);
      options.decode = *parse_decode_choice(text);
      options.network.report_delay = 300ms;
      options.faults = {{.at = 2s, .kind = FaultKind::kCrash, .instance = 3, .length = 2s}};
      options.gone_after = 3s;
      Simulated run(trace, options);
      ASSERT_TRUE(run.world.run());
      run.expect_whole_answers();
      EXPECT_GT(run.handoffs().moved, 60);
      run.world.run_for(60s);
      run.expect_nothing_held();
      hash = run.world.hash();
    }
    EXPECT_EQ(hashes[0], hashes[1]);
  }
}

TEST(HandoffWorld, ChosenAtPlacementItGoesThereOrStays) {
  const Trace trace = synthesize({.requests = 60, .rate = 20, .seed = 3});
  WorldOptions options = apart(1, 2);
  options.decode = {DecodeChooser::kAtPlacement, "round-robin"};
  options.nodes[1].engine.max_running = 1;
  options.handoff.patience = 200ms;
  Simulated run(trace, options);
  ASSERT_TRUE(run.world.run());
  run.expect_whole_answers();
  EXPECT_GT(run.handoffs().refused, 0);
  EXPECT_GT(run.handoffs().stayed, 0);
}

TEST(DecodeChoice, Text) {
  const auto choice = parse_decode_choice("central/two-choices");
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->by, DecodeChooser::kCentral);
  EXPECT_EQ(choice->policy, "two-choices");
  EXPECT_EQ(parse_decode_choice("local")->policy, "least-peak");
  EXPECT_FALSE(parse_decode_choice("nobody"));
  EXPECT_FALSE(parse_decode_choice("local/no-such-policy"));
}

// Every instance is struck, in every way, while words get lost.
TEST(HandoffWorld, WhateverFailsEveryAnswerIsWholeAndAllMemoryIsBack) {
  std::int64_t moved = 0;
  std::int64_t lost = 0;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed * 977);
    const Trace trace = synthesize({.requests = 50, .rate = 12, .seed = seed});
    WorldOptions options = apart(2, 3, seed, 400 + static_cast<std::int32_t>(rng.below(1600)));
    for (NodeOptions& node : options.nodes) node.engine.kv.prefix_cache = seed % 4 == 0;
    options.gone_after = 3s;
    options.scheduler.max_attempts = 20;
    options.network.mail_loss = 0.1 * rng.uniform();
    options.network.report_delay = Duration(rng.below(500'000'000));
    for (int n = 0; n < 6; ++n) {
      options.faults.push_back({.at = Duration(rng.below(5'000'000'000)),
                                .kind = static_cast<FaultKind>(rng.below(4)),
                                .instance = static_cast<std::uint32_t>(rng.below(5)),
                                .length = 10ms + Duration(rng.below(6'000'000'000))});
    }
    Simulated run(trace, options);
    ASSERT_TRUE(run.world.run());
    run.expect_whole_answers();
    run.world.run_for(60s);  // leases, restarts, what is said of what is over
    run.expect_nothing_held();
    moved += run.handoffs().moved;
    lost += run.handoffs().lost;
    if (HasFailure()) return;
  }
  EXPECT_GT(moved, 300);
  EXPECT_GT(lost, 0);
}

}  // namespace
}  // namespace sluice
