// The policies apart from ours: what each admits, how far it grants, who yields.
#include "memory/memory_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "base/rng.h"
#include "memory/completion_peak.h"
#include "memory/kv_world.h"

namespace sluice {
namespace {

TEST(MemoryPolicy, NamesAreRead) {
  for (const std::string_view name : memory_policy_names()) {
    ASSERT_TRUE(memory_policy_of(name)) << name;
    EXPECT_EQ(name_of(*memory_policy_of(name)), name);
  }
  EXPECT_EQ(memory_policy_names().size(), 8u);
  EXPECT_EQ(memory_policy_of("windowed"), MemoryPolicy::kWindowed);
  EXPECT_EQ(memory_policy_of("oracle"), MemoryPolicy::kOracle);
  EXPECT_EQ(memory_policy_of(""), std::nullopt);
  EXPECT_EQ(memory_policy_of("Paged"), std::nullopt);
}

// Nobody but the oracle can ask for the answer: there is nothing to ask.
static_assert(!std::is_convertible_v<HiddenLength, std::int32_t>);
static_assert(!std::is_constructible_v<std::int32_t, HiddenLength>);

// --- The peak in the order of completion

bool simulated(const std::vector<KnownDemand>& demands, std::int64_t blocks, std::int64_t size) {
  std::int64_t last = 0;
  for (const KnownDemand& d : demands) last = std::max(last, d.after + d.left);
  for (std::int64_t step = 0; step <= last; ++step) {
    std::int64_t held = 0;
    for (const KnownDemand& d : demands) {
      if (step > d.after + d.left) continue;
      held += (d.known + std::max<std::int64_t>(step - d.after, 0) + size - 1) / size;
    }
    if (held > blocks) return false;
  }
  return true;
}

TEST(CompletionPeak, AgreesWithEveryStepSimulated) {
  Rng rng(5);
  std::int64_t fits = 0;
  for (int i = 0; i < 5000; ++i) {
    std::vector<KnownDemand> demands(1 + rng.below(6));
    for (KnownDemand& d : demands) {
      d.known = 1 + static_cast<std::int64_t>(rng.below(30));
      d.left = static_cast<std::int64_t>(rng.below(40));
      d.after = rng.below(3) == 0 ? static_cast<std::int64_t>(rng.below(20)) : 0;
    }
    const auto blocks = static_cast<std::int64_t>(rng.below(60));
    const auto size = static_cast<std::int32_t>(1 + rng.below(5));
    const bool expected = simulated(demands, blocks, size);
    EXPECT_EQ(completion_peak_fits(demands, blocks, size), expected) << i;
    fits += expected ? 1 : 0;
  }
  EXPECT_GT(fits, 1000);
  EXPECT_LT(fits, 4000);
}

// --- Grants and admission

KvOptions small(MemoryPolicy policy, std::int32_t blocks) {
  KvOptions options{.num_blocks = blocks, .prefix_cache = false, .policy = policy};
  options.window = {.block_tokens = 4, .step_token_budget = 16, .min_steps = 4, .max_steps = 8};
  return options;
}

std::vector<Token> prompt(std::size_t tokens) {
  return std::vector<Token>(tokens, 7);
}

TEST(MemoryPolicy, GrantsAsFarAheadAsItSays) {
  struct Case {
    MemoryPolicy policy;
    std::int32_t at_once;  // blocks of a prompt of 40 tokens that may generate 40
    std::int32_t steps;    // of a window
  };
  for (const Case& c : {Case{MemoryPolicy::kWindowed, 11, 8}, Case{MemoryPolicy::kPaged, 10, 1},
                        Case{MemoryPolicy::kReserve, 20, 8}, Case{MemoryPolicy::kRatio, 10, 1},
                        Case{MemoryPolicy::kOracle, 10, 1}}) {
    SCOPED_TRACE(name_of(c.policy));
    KvWorld world(small(c.policy, 40));
    world.open(false);
    ASSERT_TRUE(world.admit(prompt(40), 40));
    EXPECT_EQ(world.manager.stats().granted_blocks, c.at_once);
    world.open(false);
    EXPECT_LE(world.manager.window().plan.steps, c.steps);
    if (c.steps == 1) {
      EXPECT_EQ(world.manager.window().plan.steps, 1);
    }
  }
}

// How many requests of 8 prompt tokens that may generate 32 join at once in a
// pool of 40 blocks of 4 tokens, if nothing is known of lengths.
std::size_t admitted(MemoryPolicy policy, std::int32_t true_length) {
  KvManager manager(small(policy, 40));
  const StepTimeModel step_time;
  const LengthForecast forecast;
  std::vector<RunningSequence> running;
  const std::vector<Token> tokens = prompt(8);
  while (running.size() < 100) {
    const SequenceId id(running.size() + 1);
    const AdmissionRequest request{
        .id = id, .tokens = tokens, .decode_cap = 32, .true_length = HiddenLength(true_length)};
    if (!manager.admit(request, TimePoint{}, running, step_time, forecast)) break;
    running.push_back({.id = id,
                       .held_tokens = 0,
                       .prefill_left = 8,
                       .decode_cap = 32,
                       .true_length = request.true_length});
  }
  return running.size();
}

TEST(MemoryPolicy, AdmitsByItsOwnRule) {
  EXPECT_EQ(admitted(MemoryPolicy::kPaged, 32), 20u);           // 2 blocks of prompt each
  EXPECT_EQ(admitted(MemoryPolicy::kPagedWatermark, 32), 19u);  // 2 blocks stay free
  EXPECT_EQ(admitted(MemoryPolicy::kReserve, 32), 4u);          // 10 blocks each
  EXPECT_EQ(admitted(MemoryPolicy::kRatio, 32), 4u);            // all of max_tokens in prefill
  EXPECT_EQ(admitted(MemoryPolicy::kOracle, 32), 4u);           // 39 tokens are 10 blocks
  EXPECT_EQ(admitted(MemoryPolicy::kOracle, 1), 20u);           // the first token is the last
  EXPECT_EQ(admitted(MemoryPolicy::kPeakEma, 32), 2u);          // 16 tokens of padding each
  EXPECT_GT(admitted(MemoryPolicy::kWindowed, 32), 2u);
  EXPECT_GT(admitted(MemoryPolicy::kPastFuture, 32), 2u);
}

// The answer changes nothing where the oracle is not asked.
TEST(MemoryPolicy, OnlyTheOracleKnowsTheAnswer) {
  for (const std::string_view name : memory_policy_names()) {
    const MemoryPolicy policy = *memory_policy_of(name);
    if (policy == MemoryPolicy::kOracle) {
      EXPECT_NE(admitted(policy, 1), admitted(policy, 32));
    } else {
      EXPECT_EQ(admitted(policy, 1), admitted(policy, 32)) << name;
    }
  }
}

// Blocks of one token, three that hold 6, 3 and 4 tokens: who yields for the next step?
SequenceId first_to_yield(YieldOrder order) {
  const std::vector<RunningSequence> running{{.id = SequenceId(1),
                                              .held_tokens = 6,
                                              .held_blocks = 6,
                                              .prefill_left = 1,
                                              .generated = 1,
                                              .decode_cap = 9},
                                             {.id = SequenceId(2),
                                              .held_tokens = 3,
                                              .held_blocks = 3,
                                              .prefill_left = 1,
                                              .generated = 1,
                                              .decode_cap = 9},
                                             {.id = SequenceId(3),
                                              .held_tokens = 4,
                                              .held_blocks = 4,
                                              .prefill_left = 1,
                                              .generated = 3,
                                              .decode_cap = 9}};
  const WindowPlanner planner({.block_tokens = 1, .yield = order});
  const WindowPlan plan = planner.plan({.running = running, .free_blocks = 2, .total_blocks = 15},
                                       StepTimeModel(), LengthForecast());
  return plan.deferred.at(0);
}

TEST(MemoryPolicy, TheOrderSaysWhoYields) {
  EXPECT_EQ(first_to_yield(YieldOrder::kNewest), SequenceId(3));
  EXPECT_EQ(first_to_yield(YieldOrder::kLeastGenerated), SequenceId(1));  // the longest prompt
}

TEST(MemoryPolicy, YieldingGoesOnUntilTheRoomIsThere) {
  std::vector<RunningSequence> running;
  for (std::uint64_t i = 1; i <= 4; ++i) {
    running.push_back({.id = SequenceId(i),
                       .held_tokens = 5,
                       .held_blocks = 5,
                       .prefill_left = 1,
                       .decode_cap = 30});
  }
  const WindowPlanner planner({.block_tokens = 1});
  PlanInput input{.running = running, .free_blocks = 8, .total_blocks = 28};
  EXPECT_TRUE(planner.plan(input, StepTimeModel(), LengthForecast()).deferred.empty());
  input.least_steps = 5;  // 20 blocks for all: one has to go, then 13 for 15, then 18 for 10
  EXPECT_EQ(planner.plan(input, StepTimeModel(), LengthForecast()).deferred,
            (std::vector<SequenceId>{SequenceId(4), SequenceId(3)}));
}

}  // namespace
}  // namespace sluice
