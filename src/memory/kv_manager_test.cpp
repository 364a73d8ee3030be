#include "memory/kv_manager.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "memory/kv_world.h"

namespace sluice {
namespace {

KvOptions small(std::int32_t num_blocks) {
  KvOptions options;
  options.num_blocks = num_blocks;
  options.window.block_tokens = 4;
  options.window.step_token_budget = 16;
  options.window.min_steps = 4;
  options.window.max_steps = 8;
  return options;
}

std::vector<Token> prompt(std::int32_t size, Token first = 100) {
  std::vector<Token> tokens(static_cast<std::size_t>(size));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

const auto kNext = [](const KvWorld::Sequence& s) {
  return static_cast<Token>(1000 * s.view.id.value) + s.view.generated;
};

void run(KvWorld& world, int steps) {
  for (int i = 0; i < steps; ++i) {
    world.renew_if_over();
    world.step(0, kNext);
    world.remove_capped();
  }
}

TEST(KvManager, AdmissionGrantsUntilTheWindowsEnd) {
  KvWorld world(small(32));
  world.forecast_nothing();
  world.open(false);
  ASSERT_EQ(world.manager.window().steps_left, 4);
  ASSERT_TRUE(world.admit(prompt(10), 100));
  // 10 in the first step, one in each of the three left: 13 tokens.
  EXPECT_EQ(world.manager.granted_tokens(SequenceId(1)), 16);
  world.step(0, kNext);
  ASSERT_TRUE(world.admit(prompt(40, 500), 100));
  // The window has time for all of it (16 a step) but no token more.
  EXPECT_EQ(world.manager.granted_tokens(SequenceId(2)), 40);
  EXPECT_EQ(world.manager.usage().window_granted_blocks, 4 + 10);
}

TEST(KvManager, TheFirstAdmissionOpensAWindow) {
  KvWorld world(small(32));
  EXPECT_TRUE(world.manager.window_over(world.now));
  ASSERT_TRUE(world.admit(prompt(10), 100));
  EXPECT_EQ(world.manager.window().number, 1);
  EXPECT_FALSE(world.manager.window_over(world.now));
}

TEST(KvManager, AWindowEndsWithItsTimeOrItsSteps) {
  KvWorld world(small(32));
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(3), 100));
  world.open(false);
  const Window window = world.manager.window();
  EXPECT_EQ(window.end - window.begin, window.plan.length);
  EXPECT_FALSE(world.manager.window_over(window.end - Duration(1)));
  EXPECT_TRUE(world.manager.window_over(window.end));
  for (int i = 0; i < window.plan.steps; ++i) {
    EXPECT_FALSE(world.manager.window_over(window.begin));
    world.manager.use_step();
  }
  EXPECT_TRUE(world.manager.window_over(window.begin));
}

TEST(KvManager, PrefixesAreAliasedAndPartsCopied) {
  KvWorld world(small(32));
  world.forecast_nothing();
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(10), 100));
  run(world, 1);
  // 8 tokens are in two full blocks, 2 are in one that is not full.
  EXPECT_EQ(world.manager.cached_prefix(prompt(10)), 8);
  EXPECT_EQ(world.manager.cached_prefix(prompt(7)), 6);  // part of the second block
  EXPECT_EQ(world.manager.cached_prefix(prompt(8)), 7);  // the last token is always computed
  EXPECT_EQ(world.manager.cached_prefix(prompt(10, 7)), 0);

  ASSERT_TRUE(world.admit(prompt(12), 100));
  const auto first = world.manager.table(SequenceId(1));
  const auto second = world.manager.table(SequenceId(2));
  EXPECT_EQ(world.running.back().view.held_tokens, 8);
  EXPECT_FALSE(world.running.back().copy.has_value());
  EXPECT_EQ(first[0], second[0]);
  EXPECT_EQ(first[1], second[1]);
  EXPECT_NE(first[2], second[2]);

  auto forked = prompt(12);
  forked[6] = 9;
  ASSERT_TRUE(world.admit(forked, 100));
  const auto third = world.manager.table(SequenceId(3));
  EXPECT_EQ(world.running.back().view.held_tokens, 6);
  ASSERT_TRUE(world.running.back().copy.has_value());
  EXPECT_EQ(world.running.back().copy->from, first[1]);
  EXPECT_EQ(world.running.back().copy->to, third[1]);
  EXPECT_EQ(world.running.back().copy->num_tokens, 2);
  const KvStats stats = world.manager.stats();
  EXPECT_EQ(stats.prefix_queries, 10 + 12 + 12);
  EXPECT_EQ(stats.prefix_hits, 8 + 6);
  run(world, 20);
}

TEST(KvManager, ReleasedPrefixesStayUntilMemoryIsWanted) {
  KvWorld world(small(8));
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(12), 1));
  run(world, 1);
  KvStats stats = world.manager.stats();
  EXPECT_EQ(stats.granted_blocks, 0);
  EXPECT_EQ(stats.cached_blocks, 3);
  EXPECT_EQ(stats.free_blocks, 5);
  EXPECT_EQ(world.manager.cached_prefix(prompt(13)), 12);

  world.renew_if_over();
  ASSERT_TRUE(world.admit(prompt(28, 500), 1));  // 7 blocks: the deep end of the prefix goes
  EXPECT_EQ(world.manager.cached_prefix(prompt(13)), 4);
  EXPECT_EQ(world.manager.shortfalls().prefix_blocks_dropped, 2);
  EXPECT_EQ(world.manager.stats().prefix_evictions, 2);
  world.manager.drop_prefixes();
  EXPECT_EQ(world.manager.stats().cached_blocks, 0);
  world.check();
}

TEST(KvManager, WhatARequestMatchedIsNotEvictedForIt) {
  KvWorld world(small(8));
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(16), 1));
  run(world, 1);
  world.renew_if_over();
  ASSERT_TRUE(world.admit(prompt(30, 100), 2));  // shares all four kept blocks
  EXPECT_EQ(world.running.back().view.held_tokens, 16);
  EXPECT_EQ(world.manager.stats().prefix_evictions, 0);
  run(world, 2);
}

TEST(KvManager, ThePartToCopyGivesWayWhenThereIsNoRoomForBoth) {
  KvWorld world(small(4));
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(4), 1));
  run(world, 1);
  world.renew_if_over();
  auto forked = prompt(16);
  forked[2] = 9;  // shares two tokens of the kept block, and needs all four blocks
  ASSERT_TRUE(world.admit(forked, 1));
  EXPECT_FALSE(world.running.back().copy.has_value());
  EXPECT_EQ(world.running.back().view.held_tokens, 0);
  run(world, 1);
}

TEST(KvManager, RefusesWhatDoesNotFitBesideTheGrants) {
  KvWorld world(small(8));
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(20), 100));  // 20 + 2 tokens: 6 blocks
  EXPECT_FALSE(world.admit(prompt(12, 500), 1));
  EXPECT_EQ(world.last_refusal, Refusal::kWindow);
  EXPECT_EQ(world.manager.shortfalls().refused_window, 1);
}

TEST(KvManager, RefusesWhatWouldNotFitLater) {
  KvWorld world(small(32));
  LengthForecast& forecast = world.forecast;
  for (int i = 0; i < 5000; ++i) forecast.observe(80, false);
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(8, 100), 100));   // grows to 22 blocks
  EXPECT_FALSE(world.admit(prompt(8, 500), 100));  // and so would this one
  EXPECT_EQ(world.last_refusal, Refusal::kForecast);
  EXPECT_EQ(world.manager.shortfalls().refused_forecast, 1);
  EXPECT_TRUE(world.admit(prompt(8, 500), 8));  // capped, it is gone in time
}

TEST(KvManager, AloneAnythingThatFitsIsAdmitted) {
  KvWorld world(small(8));
  for (int i = 0; i < 5000; ++i) world.forecast.observe(1000, false);
  world.open(false);
  EXPECT_TRUE(world.admit(prompt(16), 16));
  run(world, 40);
  EXPECT_TRUE(world.running.empty());
  EXPECT_EQ(world.restarts, 0);
}

TEST(KvManager, EqualPromptsComputedTogetherAreIndexedOnce) {
  KvWorld world(small(32));
  world.forecast_nothing();
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(8), 100));
  ASSERT_TRUE(world.admit(prompt(8), 100));  // nothing is written yet: no hit
  run(world, 1);
  const auto table = [&](std::uint64_t id) { return world.manager.table(SequenceId(id)); };
  EXPECT_NE(table(1)[0], table(2)[0]);
  // The second one keeps its own blocks, and the index's with it.
  world.remove(SequenceId(1));
  EXPECT_EQ(world.manager.cached_prefix(prompt(9)), 8);
  world.manager.drop_prefixes();
  EXPECT_EQ(world.manager.cached_prefix(prompt(9)), 8);
  EXPECT_EQ(world.manager.stats().granted_blocks, static_cast<std::int32_t>(table(2).size()) + 2);
  world.open(true);  // at the next plan its own take over
  EXPECT_EQ(world.manager.stats().granted_blocks, static_cast<std::int32_t>(table(2).size()));
  run(world, 8);
}

TEST(KvManager, EarlyRenewalKeepsWhatIsWrittenAndReturnsTheRest) {
  KvOptions options = small(64);
  options.window.min_steps = 8;
  KvWorld world(options);
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(60), 100));
  EXPECT_GE(world.manager.granted_tokens(SequenceId(1)), 60 + 4);
  world.step(0, kNext);
  world.open(true);
  EXPECT_EQ(world.manager.usage().early_renewals, 1);
  EXPECT_EQ(world.manager.window().number, 2);
  run(world, 30);
}

TEST(KvManager, AtAShortfallTheLatestOfTheLeastImportantYields) {
  KvWorld world(small(9));
  world.forecast_nothing();  // and it is wrong
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(8, 100), 60, /*priority=*/0));
  ASSERT_TRUE(world.admit(prompt(8, 200), 60, /*priority=*/1));
  ASSERT_TRUE(world.admit(prompt(8, 300), 60, /*priority=*/1));
  run(world, 12);
  EXPECT_EQ(world.restarts, 2);
  ASSERT_EQ(world.running.size(), 1u);
  EXPECT_EQ(world.running[0].view.id, SequenceId(2));
  EXPECT_GT(world.manager.shortfalls().windows_shortened, 0);
  EXPECT_GT(world.manager.shortfalls().windows_deferring, 0);
}

TEST(KvManager, UsageCountsWhatWasGrantedInVain) {
  KvWorld world(small(64));
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(8), 100));
  run(world, 4);
  world.renew_if_over();
  const WindowUsage usage = world.manager.usage();
  EXPECT_EQ(usage.windows_ended, 1);
  // 8 + 3 tokens written, in the three blocks that were granted.
  EXPECT_EQ(usage.granted_blocks_sum, 3);
  EXPECT_EQ(usage.unused_blocks_sum, 0);
  EXPECT_GT(usage.seconds_sum, 0);
}

TEST(KvManager, WithoutThePrefixCacheNothingIsKept) {
  KvOptions options = small(16);
  options.prefix_cache = false;
  KvWorld world(options);
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(12), 2));
  run(world, 3);
  EXPECT_EQ(world.manager.cached_prefix(prompt(12)), 0);
  EXPECT_EQ(world.manager.stats().free_blocks, 16);
}

TEST(KvManagerDeathTest, MisuseStops) {
  KvWorld world(small(16));
  EXPECT_DEATH(world.manager.use_step(), "check failed");
  EXPECT_DEATH(world.manager.release(SequenceId(5)), "check failed");
  world.open(false);
  ASSERT_TRUE(world.admit(prompt(4), 100));
  const std::vector<Token> too_many = prompt(100);
  EXPECT_DEATH(world.manager.written(SequenceId(1), too_many), "check failed");
  EXPECT_DEATH(world.manager.open_window(world.now, {}, world.step_time, world.forecast),
               "check failed");
}

}  // namespace
}  // namespace sluice
