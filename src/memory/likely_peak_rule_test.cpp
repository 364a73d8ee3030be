#include "memory/likely_peak_rule.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

namespace sluice {
namespace {

LengthForecast lengths_up_to_400() {
  LengthForecast forecast;
  for (int i = 0; i < 4000; ++i) forecast.observe(1 + (i * 37) % 400, false);
  return forecast;
}

// Sequences of 100 tokens that decode, and a pool of so many blocks.
class World {
 public:
  explicit World(std::size_t count, double prefill_token = 1e-4, WindowOptions options = {})
      : planner_(options),
        step_time_({.base = 0.02, .per_prefill_token = prefill_token}),
        running_(count, {.held_tokens = 100,
                         .held_blocks = 7,
                         .prefill_left = 1,
                         .generated = 20,
                         .decode_cap = 1000}) {}

  [[nodiscard]] bool admits(std::int64_t blocks, std::optional<Duration> pause = {}) {
    return rule_.admits(arrival_to(blocks, pause), step_time_, forecast_);
  }
  // From here on those that arrive have yielded before, in the middle of their answers.
  void arrivals_go_on() { arrival_.generated = 20; }
  // The smallest pool that an arrival is admitted to, by a rule that nothing happened to.
  [[nodiscard]] std::int64_t least_pool(std::optional<Duration> pause = {}) {
    std::int64_t blocks = 1;
    while (!LikelyPeakRule(planner_).admits(arrival_to(blocks, pause), step_time_, forecast_)) {
      ++blocks;
    }
    return blocks;
  }
  void shortfall() { rule_.opened({.deferred = {SequenceId(1)}}, running_); }
  void calm() { rule_.opened({}, running_); }
  [[nodiscard]] double z() const { return rule_.z(); }

 private:
  [[nodiscard]] Arrival arrival_to(std::int64_t blocks, std::optional<Duration> pause) const {
    return {.sequence = arrival_,
            .running = running_,
            .new_blocks = 6,
            .room_blocks = blocks,
            .total_blocks = blocks,
            .block_pause = pause,
            .steps_left = 8,
            .window_steps = 8};
  }

  RunningSequence arrival_{.prefill_left = 80, .decode_cap = 1000};
  WindowPlanner planner_;
  StepTimeModel step_time_;
  LengthForecast forecast_ = lengths_up_to_400();
  std::vector<RunningSequence> running_;
  LikelyPeakRule rule_{planner_};
};

TEST(LikelyPeakRule, AdmitsMoreWhereYieldingIsCheap) {
  const std::int64_t dear = World(200, 1e-2).least_pool();
  const std::int64_t cheap = World(200, 1e-5).least_pool();
  EXPECT_LT(cheap, dear);
  // A copy to host memory instead of a dear computation; a slow one is not used.
  EXPECT_LT(World(200, 1e-2).least_pool(std::chrono::microseconds(10)), dear);
  EXPECT_EQ(World(200, 1e-2).least_pool(std::chrono::seconds(1)), dear);
}

TEST(LikelyPeakRule, AdmitsMoreWhereMoreHoldUpIsAllowed) {
  std::int64_t last = 1'000'000;
  for (const int ms : {0, 300, 1000, 3000, 30'000}) {
    World world(200, 0, {.hold_up = std::chrono::milliseconds(ms)});
    EXPECT_LE(world.least_pool(), last);
    last = world.least_pool();
  }
  EXPECT_LT(last, World(200, 0, {.hold_up = Duration::zero()}).least_pool());
}

// It waits in the middle of its answer. Where yielding is dear, that changes nothing.
TEST(LikelyPeakRule, WhoHasYieldedComesBackSoonerWhereYieldingIsCheap) {
  for (const double prefill_token : {1e-6, 1e-2}) {
    World fresh(20, prefill_token, {.hold_up = std::chrono::seconds(10)});
    World back(20, prefill_token, {.hold_up = std::chrono::seconds(10)});
    back.arrivals_go_on();
    const bool cheap = prefill_token < 1e-3;
    EXPECT_EQ(back.least_pool() < fresh.least_pool(), cheap) << prefill_token;
    EXPECT_LE(back.least_pool(), fresh.least_pool());
  }
}

TEST(LikelyPeakRule, ShortfallsRaiseTheMarginAndAdmissionsWearThatOff) {
  World world(200);
  ASSERT_TRUE(world.admits(10'000));
  const double before = world.z();
  for (int i = 0; i < 10; ++i) world.shortfall();
  EXPECT_NEAR(world.z(), before + 0.5, 1e-9);
  world.calm();
  EXPECT_NEAR(world.z(), before + 0.5, 1e-9);
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(world.admits(10'000));
  EXPECT_NEAR(world.z(), before, 1e-3);
  for (int i = 0; i < 1000; ++i) world.shortfall();
  EXPECT_NEAR(world.z(), before + 2, 1e-9);
}

// Risks that were taken and came to nothing: it was too careful.
TEST(LikelyPeakRule, FewerShortfallsThanForeseenLowerTheMargin) {
  World world(20, 1e-6, {.hold_up = std::chrono::seconds(10)});
  const std::int64_t least = world.least_pool();
  ASSERT_TRUE(world.admits(least));
  const double before = world.z();
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(world.admits(least));
  EXPECT_LT(world.z(), before - 0.1);
  EXPECT_GT(world.z(), before - 1.01);
  EXPECT_TRUE(world.admits(least - 1));
}

}  // namespace
}  // namespace sluice
