// The rules of a window's length beside the default one, and the room that a plan
// leaves for arrivals.
#include <gtest/gtest.h>

#include <vector>

#include "memory/arrival_rate.h"
#include "memory/window_planner.h"

namespace sluice {
namespace {

// Ten that hold a full block each.
std::vector<RunningSequence> ten() {
  std::vector<RunningSequence> running;
  for (std::uint64_t i = 1; i <= 10; ++i) {
    running.push_back({.id = SequenceId(i),
                       .held_tokens = 16,
                       .held_blocks = 1,
                       .prefill_left = 1,
                       .generated = 8,
                       .decode_cap = 5000});
  }
  return running;
}

LengthForecast lengths_up_to(std::int32_t most) {
  LengthForecast forecast;
  for (int i = 0; i < 3000; ++i) forecast.observe(1 + i % most, false);
  return forecast;
}

WindowPlan plan(const WindowOptions& options, PlanInput input,
                const LengthForecast& forecast = lengths_up_to(1000)) {
  const std::vector<RunningSequence> running = ten();
  input.running = running;
  input.total_blocks = 1'000'000;
  return WindowPlanner(options).plan(input, StepTimeModel({.base = 0.01}), forecast);
}

TEST(WindowLength, EachRuleIsLongerThanTheOneBefore) {
  const PlanInput roomy{.free_blocks = 900'000};
  std::int32_t last = 0;
  for (const WindowLength rule :
       {WindowLength::kCompletion, WindowLength::kMean, WindowLength::kLongest}) {
    const WindowPlan p = plan({.length = rule}, roomy);
    EXPECT_GT(p.steps, last);
    last = p.steps;
  }
  // Of lengths that are even between 1 and 1,000.
  EXPECT_NEAR(plan({.length = WindowLength::kMean}, roomy).steps, 500, 40);
  EXPECT_NEAR(last, 900, 40);
  EXPECT_EQ(plan({.length = WindowLength::kFixed, .fixed_steps = 7}, roomy).steps, 7);
}

TEST(WindowLength, CapacityCutsEveryRule) {
  for (const WindowLength rule :
       {WindowLength::kBounded, WindowLength::kCompletion, WindowLength::kMean,
        WindowLength::kLongest, WindowLength::kFixed}) {
    const WindowPlan p =
        plan({.min_steps = 1, .length = rule, .fixed_steps = 40}, {.free_blocks = 10});
    EXPECT_LE(p.steps, 16);
    EXPECT_LE(p.demand_blocks, 10);
    EXPECT_TRUE(p.deferred.empty());
  }
}

TEST(WindowLength, RoomForArrivalsCostsLengthOnly) {
  const WindowOptions options{.min_steps = 2, .max_steps = 32};
  struct Case {
    const char* name;
    std::int64_t waiting;
    double a_second;
    std::int32_t steps;
    std::int64_t room;
    std::int64_t wanted;
  };
  for (const Case& c :
       {Case{"nobody comes", 0, 0, 32, 10, 0}, Case{"there is room", 10, 0, 32, 10, 10},
        Case{"for the next that waits", 11, 0, 16, 20, 11},
        Case{"for those that are likely to come", 0, 50, 16, 20, 16},
        Case{"only just", 20, 0, 16, 20, 20}, Case{"more than there is", 100, 0, 32, 10, 100}}) {
    SCOPED_TRACE(c.name);
    const WindowPlan p = plan(
        options,
        {.free_blocks = 30, .waiting_blocks = c.waiting, .arriving_blocks_a_second = c.a_second});
    EXPECT_EQ(p.steps, c.steps);
    EXPECT_EQ(p.room_blocks, c.room);
    EXPECT_EQ(p.wanted_room_blocks, c.wanted);
    EXPECT_EQ(p.room_blocks + p.demand_blocks, 30);
    EXPECT_TRUE(p.deferred.empty());
  }
}

TEST(ArrivalRate, FollowsWhatCame) {
  ArrivalRate rate;
  EXPECT_EQ(rate.blocks_a_second(), 0);
  for (int i = 0; i < 600; ++i) {
    rate.came(7);
    rate.passed(std::chrono::milliseconds(100));
  }
  EXPECT_NEAR(rate.blocks_a_second(), 70, 2);
  for (int i = 0; i < 600; ++i) rate.passed(std::chrono::milliseconds(100));
  EXPECT_LT(rate.blocks_a_second(), 3);
}

}  // namespace
}  // namespace sluice
