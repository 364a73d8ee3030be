#include "memory/window_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"

namespace sluice {
namespace {

using std::chrono::milliseconds;

// A device where a step takes 10 ms, whatever is in it.
StepTimeModel flat_steps() {
  return StepTimeModel({.base = 0.01});
}

RunningSequence decoding(std::uint64_t id, std::int32_t held, std::int32_t cap = 1000) {
  return {.id = SequenceId(id),
          .held_tokens = held,
          .held_blocks = (held + 15) / 16,
          .prefill_left = 1,
          .generated = 1,
          .decode_cap = cap};
}

RunningSequence prefilling(std::uint64_t id, std::int32_t left, std::int32_t cap = 1000) {
  return {.id = SequenceId(id), .prefill_left = left, .decode_cap = cap};
}

WindowPlan plan(const WindowPlanner& planner, const std::vector<RunningSequence>& running,
                std::int64_t free_blocks, std::int64_t total_blocks,
                Duration planning_cost = Duration::zero(), const LengthForecast& forecast = {}) {
  return planner.plan({.running = running,
                       .free_blocks = free_blocks,
                       .total_blocks = total_blocks,
                       .planning_cost = planning_cost},
                      flat_steps(), forecast);
}

TEST(WindowPlanner, WritableTokensAreAllThatCouldBeWritten) {
  const WindowPlanner planner({.step_token_budget = 100});
  struct Case {
    const char* name;
    std::int32_t prefill_left;
    std::int32_t cap;
    std::int32_t steps;
    std::int32_t writable;
  };
  for (const Case& c : {
           Case{"decode, one a step", 1, 50, 8, 8},
           Case{"decode, capped", 1, 5, 8, 5},
           Case{"decode whose last token is not to be written", 0, 5, 8, 5},
           Case{"nothing left", 0, 0, 8, 0},
           Case{"a known token without a future", 1, 0, 8, 1},
           Case{"prompt in one step, then decode", 60, 50, 8, 67},
           Case{"prompt of exactly one step", 100, 50, 1, 100},
           Case{"prompt of two steps", 101, 50, 8, 107},
           Case{"prompt longer than the window", 1000, 50, 8, 800},
           Case{"prompt as long as the window", 800, 50, 8, 800},
           Case{"prompt, decode capped: the last token is not written", 60, 3, 8, 62},
           Case{"prompt of one answer token", 60, 1, 8, 60},
       }) {
    SCOPED_TRACE(c.name);
    RunningSequence sequence = prefilling(1, c.prefill_left, c.cap);
    EXPECT_EQ(planner.writable_tokens(sequence, c.steps), c.writable);
  }
}

TEST(WindowPlanner, GrantsOnlyWhatTheWindowNeeds) {
  const WindowPlanner planner({.min_steps = 4, .max_steps = 4});
  struct Case {
    const char* name;
    std::vector<RunningSequence> running;
    std::int64_t free;
    std::int32_t steps;
    std::vector<std::int32_t> blocks;
    std::vector<std::uint64_t> deferred;
  };
  for (const Case& c : {
           Case{"room in its last block", {decoding(1, 10)}, 8, 4, {0}, {}},
           Case{"one block more", {decoding(1, 14)}, 8, 4, {1}, {}},
           Case{"a prompt", {prefilling(1, 100)}, 8, 4, {7}, {}},
           Case{"two grow", {decoding(1, 14), decoding(2, 30)}, 2, 4, {1, 1}, {}},
           Case{"shorter, so that nobody needs a block",
                {decoding(1, 14), decoding(2, 30)},
                1,
                2,
                {0, 0},
                {}},
           Case{"the later one yields", {decoding(1, 16), decoding(2, 16)}, 1, 1, {1}, {2}},
           Case{"who needs nothing runs on", {decoding(1, 17), decoding(2, 16)}, 0, 1, {0}, {2}},
           Case{"the earlier one waits for the room that the later one will leave",
                {decoding(1, 16), decoding(2, 17)},
                0,
                1,
                {},
                {2, 1}},
           Case{"not even one", {decoding(1, 16)}, 0, 1, {}, {1}},
       }) {
    SCOPED_TRACE(c.name);
    const WindowPlan result = plan(planner, c.running, c.free, 100);
    EXPECT_EQ(result.steps, c.steps);
    std::vector<std::int32_t> blocks;
    for (const Grant& grant : result.grants) blocks.push_back(grant.new_blocks);
    EXPECT_EQ(blocks, c.blocks);
    std::vector<std::uint64_t> deferred;
    for (const SequenceId id : result.deferred) deferred.push_back(id.value);
    EXPECT_EQ(deferred, c.deferred);
  }
}

TEST(WindowPlanner, LowPriorityYieldsFirst) {
  const WindowPlanner planner({});
  std::vector<RunningSequence> running{decoding(1, 16), decoding(2, 16), decoding(3, 16)};
  running[0].priority = -1;
  const WindowPlan result = plan(planner, running, 2, 100);
  ASSERT_EQ(result.grants.size(), 2u);
  EXPECT_EQ(result.grants[0].id, SequenceId(2));
  EXPECT_EQ(result.deferred, std::vector{SequenceId(1)});
}

// Completions far away and a huge pool, but for the bound under test.
TEST(WindowPlanner, EachBoundFixesTheLength) {
  LengthForecast all_at_500;
  LengthForecast all_at_30;
  for (int i = 0; i < 20000; ++i) {
    all_at_500.observe(500, false);
    all_at_30.observe(30, false);
  }
  struct Case {
    const char* name;
    WindowOptions options;
    const LengthForecast* forecast;
    std::int64_t total;
    std::int64_t free;
    Duration cost;
    std::int32_t steps;
    WindowBound bound;
  };
  const std::int64_t huge = 1'000'000;
  for (const Case& c : {
           Case{"maximum", {}, &all_at_500, huge, huge, {}, 64, WindowBound::kMaximum},
           Case{"time",
                {.max_length = milliseconds(200)},
                &all_at_500,
                huge,
                huge,
                {},
                20,
                WindowBound::kMaximum},
           Case{"completion", {}, &all_at_30, huge, huge, {}, 29, WindowBound::kCompletion},
           // 10 sequences that grow for s steps leave 5 s tokens unused; 3 % of 500 blocks are 240.
           Case{"unused", {}, &all_at_500, 500, 500, {}, 48, WindowBound::kUnused},
           Case{"least", {}, &all_at_500, 50, 50, {}, 8, WindowBound::kOverhead},
           // 1 ms is at most 0.5 % of the window from 20 steps of 10 ms on.
           Case{"overhead", {}, &all_at_500, 100, 100, milliseconds(1), 20, WindowBound::kOverhead},
           Case{"overhead, within the maximum",
                {},
                &all_at_500,
                100,
                100,
                milliseconds(100),
                64,
                WindowBound::kOverhead},
           Case{"capacity", {}, &all_at_500, huge, 10, {}, 17, WindowBound::kCapacity},
       }) {
    SCOPED_TRACE(c.name);
    std::vector<RunningSequence> running;
    for (std::uint64_t i = 0; i < 10; ++i) running.push_back(decoding(i, 15));
    const WindowPlan result =
        plan(WindowPlanner(c.options), running, c.free, c.total, c.cost, *c.forecast);
    EXPECT_EQ(result.steps, c.steps);
    EXPECT_EQ(result.bound, c.bound);
    EXPECT_EQ(result.length, result.steps * milliseconds(10));
  }
}

TEST(WindowPlanner, TheCapEndsASequence) {
  LengthForecast all_at_500;
  for (int i = 0; i < 20000; ++i) all_at_500.observe(500, false);
  const WindowPlan result =
      plan(WindowPlanner({}), {decoding(1, 15, 12), decoding(2, 15)}, 1000, 100000, {}, all_at_500);
  EXPECT_EQ(result.steps, 12);
  EXPECT_EQ(result.bound, WindowBound::kCompletion);
}

TEST(WindowPlanner, IdleWindowIsShort) {
  const WindowPlan result = plan(WindowPlanner({}), {}, 10, 10);
  EXPECT_EQ(result.bound, WindowBound::kIdle);
  EXPECT_EQ(result.steps, 8);
  EXPECT_GT(result.length, Duration::zero());
  EXPECT_TRUE(result.grants.empty());
}

TEST(WindowPlanner, OutlookCountsTheSurvivorsOnly) {
  LengthForecast all_at_100;
  for (int i = 0; i < 20000; ++i) all_at_100.observe(100, false);
  const WindowPlanner planner({.min_steps = 20});
  std::vector<RunningSequence> running;
  for (std::uint64_t i = 0; i < 10; ++i) running.push_back(decoding(i, 160));
  const auto outlook =
      planner.outlook({.running = running, .first_steps = 20, .window_steps = 20, .z = 0},
                      flat_steps(), all_at_100);
  ASSERT_EQ(outlook.size(), 8u);
  EXPECT_EQ(outlook[0].after, milliseconds(200));
  // Ten of 161 + 20 tokens, and room for one more: 11.9 blocks each.
  EXPECT_NEAR(static_cast<double>(outlook[0].demand_blocks), 119, 1);
  EXPECT_LE(outlook.back().demand_blocks, 2);
  for (std::size_t i = 1; i < outlook.size(); ++i)
    EXPECT_GT(outlook[i].after, outlook[i - 1].after);

  // An arrival adds its prompt; what is shared counts once.
  const RunningSequence arrival = prefilling(99, 320);
  const auto with = planner.outlook({.running = running,
                                     .arrival = &arrival,
                                     .first_steps = 20,
                                     .window_steps = 20,
                                     .shared_blocks = 11,
                                     .z = 0},
                                    flat_steps(), all_at_100);
  EXPECT_NEAR(static_cast<double>(with[0].demand_blocks), 119 + 22 - 11, 2);
}

TEST(WindowPlanner, DeviationWidensTheOutlook) {
  LengthForecast prior;
  std::vector<RunningSequence> running;
  for (std::uint64_t i = 0; i < 10; ++i) running.push_back(decoding(i, 160));
  std::int64_t last = 0;
  for (const double z : {0.0, 1.0, 3.0}) {
    const auto outlook = WindowPlanner({}).outlook(
        {.running = running, .first_steps = 64, .window_steps = 64, .z = z}, flat_steps(), prior);
    EXPECT_GT(outlook[1].demand_blocks, last);
    last = outlook[1].demand_blocks;
  }
}

TEST(WindowPlanner, AForecastThatHasSeenLittleWidensTheOutlook) {
  LengthForecast little;
  LengthForecast much;
  for (int i = 0; i < 100; ++i) little.observe(1 + i * 4, false);
  for (int i = 0; i < 4000; ++i) much.observe(1 + i % 100 * 4, false);
  std::vector<RunningSequence> running;
  for (std::uint64_t i = 0; i < 500; ++i) running.push_back(decoding(i, 160));
  const auto margin = [&](const LengthForecast& forecast) {
    OutlookInput input{.running = running, .first_steps = 64, .window_steps = 64, .z = 0};
    const auto mean = WindowPlanner({}).outlook(input, flat_steps(), forecast);
    input.z = 2;
    const auto with = WindowPlanner({}).outlook(input, flat_steps(), forecast);
    return static_cast<double>(with[1].demand_blocks) / static_cast<double>(mean[1].demand_blocks);
  };
  EXPECT_GT(margin(little), 1.05);
  EXPECT_LT(margin(much), margin(little));
}

// The header's "Ensures", and that the length is the longest that fits.
void expect_ensured(const WindowPlanner& planner, const std::vector<RunningSequence>& running,
                    std::int64_t free, const WindowPlan& result) {
  const auto need = [&](const RunningSequence& s, std::int32_t steps) {
    const auto blocks = planner.blocks_for(s.held_tokens + planner.writable_tokens(s, steps));
    return std::int64_t{std::max(blocks - s.held_blocks, 0)};
  };
  ASSERT_GE(result.steps, 1);
  ASSERT_LE(result.steps, planner.options().max_steps);
  std::map<SequenceId, const Grant*> granted;
  std::int64_t demand = 0;
  for (const Grant& grant : result.grants) {
    granted[grant.id] = &grant;
    demand += grant.new_blocks;
  }
  EXPECT_EQ(demand, result.demand_blocks);
  EXPECT_LE(demand, free);
  const std::set<SequenceId> deferred(result.deferred.begin(), result.deferred.end());
  EXPECT_EQ(deferred.size(), result.deferred.size());
  EXPECT_EQ(granted.size() + deferred.size(), running.size());
  std::int64_t one_step = 0;
  std::int64_t one_longer = 0;
  for (const RunningSequence& s : running) {
    one_step += need(s, 1);
    one_longer += need(s, result.steps + 1);
    EXPECT_NE(granted.contains(s.id), deferred.contains(s.id));
    if (!granted.contains(s.id)) continue;
    EXPECT_EQ(granted[s.id]->until_tokens,
              s.held_tokens + planner.writable_tokens(s, result.steps));
    EXPECT_EQ(granted[s.id]->new_blocks, need(s, result.steps));
  }
  EXPECT_EQ(deferred.empty(), one_step <= free);
  if (result.bound == WindowBound::kCapacity) {
    EXPECT_GT(one_longer, free);
  } else {
    EXPECT_TRUE(running.empty() || result.steps >= planner.options().min_steps);
  }
  EXPECT_EQ(result.outlook.empty(), false);
}

TEST(WindowPlanner, PropertiesOverRandomSets) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto below = [&rng](std::uint64_t n) { return static_cast<std::int32_t>(rng.below(n)); };
    WindowOptions options;
    options.block_tokens = 1 + below(20);
    options.step_token_budget = 1 + below(64);
    options.min_steps = 1 + below(10);
    options.max_steps = options.min_steps + below(60);
    options.outlook_windows = 1 + below(8);
    const WindowPlanner planner(options);
    std::vector<RunningSequence> running(rng.below(12));
    for (std::size_t i = 0; i < running.size(); ++i) {
      RunningSequence& s = running[i];
      s.id = SequenceId(i + 1);
      s.held_tokens = below(100);
      s.held_blocks = planner.blocks_for(s.held_tokens) + (below(3) == 0 ? below(3) : 0);
      s.prefill_left = below(3) == 0 ? 1 + below(300) : 1;
      s.generated = below(2) == 0 ? 0 : below(500);
      s.decode_cap = 1 + below(200);
      s.priority = below(3);
    }
    const std::int64_t free = below(2) == 0 ? below(20) : below(400);
    LengthForecast forecast;
    for (int i = below(50); i > 0; --i) forecast.observe(1 + below(100), below(4) == 0);
    const WindowPlan result = planner.plan({.running = running,
                                            .free_blocks = free,
                                            .total_blocks = free + 200,
                                            .planning_cost = Duration(below(1'000'000))},
                                           StepTimeModel(), forecast);
    expect_ensured(planner, running, free, result);
    if (testing::Test::HasFailure()) break;
  }
}

// All sets of up to 3 sequences with up to 3 tokens held, up to 3 left, up to 4 blocks.
TEST(WindowPlanner, ExhaustiveSmallSets) {
  const WindowPlanner planner(
      {.block_tokens = 2, .step_token_budget = 2, .min_steps = 1, .max_steps = 3});
  const LengthForecast forecast;
  const StepTimeModel step_time;
  std::vector<RunningSequence> kinds;
  for (std::int32_t held = 0; held <= 3; ++held) {
    for (std::int32_t left = 1; left <= 3; ++left) {
      for (std::int32_t cap = 1; cap <= 3; cap += 2) {
        kinds.push_back({.held_tokens = held,
                         .held_blocks = planner.blocks_for(held),
                         .prefill_left = left,
                         .decode_cap = cap,
                         .priority = cap});
      }
    }
  }
  const std::size_t n = kinds.size() + 1;  // the last kind: absent
  for (std::size_t code = 0; code < n * n * n; ++code) {
    std::vector<RunningSequence> running;
    for (const std::size_t kind : {code % n, code / n % n, code / n / n}) {
      if (kind == kinds.size()) continue;
      running.push_back(kinds[kind]);
      running.back().id = SequenceId(running.size());
    }
    for (std::int64_t free = 0; free <= 4; ++free) {
      const WindowPlan result = planner.plan(
          {.running = running, .free_blocks = free, .total_blocks = 12}, step_time, forecast);
      expect_ensured(planner, running, free, result);
      ASSERT_FALSE(testing::Test::HasFailure()) << "code " << code << ", free " << free;
    }
  }
}

}  // namespace
}  // namespace sluice
