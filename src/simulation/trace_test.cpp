#include "simulation/trace.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using namespace std::chrono_literals;

Trace at(std::initializer_list<Duration> times) {
  Trace trace;
  for (const Duration t : times) trace.requests.push_back({.arrival = t});
  return trace;
}

std::vector<Duration> times_of(const Trace& trace) {
  std::vector<Duration> times;
  for (const TraceRequest& r : trace.requests) times.push_back(r.arrival);
  return times;
}

TEST(Trace, APromptIsItsBlocksThenItsOwn) {
  Trace trace;
  trace.block_tokens = 4;
  trace.blocks = {7, 8, 7, 9};
  trace.requests.push_back({.prompt_tokens = 10, .first_block = 0, .num_blocks = 2});
  trace.requests.push_back({.prompt_tokens = 10, .first_block = 2, .num_blocks = 2});
  const auto a = trace.prompt(0);
  const auto b = trace.prompt(1);
  ASSERT_EQ(a.size(), 10U);
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 4, b.begin()));
  for (std::size_t i = 4; i < 10; ++i) EXPECT_NE(a[i], b[i]) << i;
  EXPECT_EQ(a, trace.prompt(0));
}

TEST(Trace, TicksAreSpreadOverTheTimeUntilTheNext) {
  Trace trace = at({0s, 0s, 0s, 3s, 3s, 6s});
  spread_ticks(trace);
  EXPECT_EQ(times_of(trace), (std::vector<Duration>{0s, 1s, 2s, 3s, 4500ms, 6s}));
  Trace fine = at({0s, 1ms, 1ms, 2ms});
  spread_ticks(fine);
  EXPECT_EQ(times_of(fine), (std::vector<Duration>{0s, 1ms, 1ms, 2ms}));
}

TEST(Trace, RateAndPart) {
  Trace trace = at({0s, 10s, 20s, 30s});
  scale_rate(trace, 2);
  EXPECT_EQ(times_of(trace), (std::vector<Duration>{0s, 5s, 10s, 15s}));
  cut(trace, 5s, 15s);
  EXPECT_EQ(times_of(trace), (std::vector<Duration>{0s, 5s}));
  EXPECT_EQ(trace.span(), 5s);
}

TEST(Trace, FollowersKeepTheirLeaders) {
  Trace trace;
  trace.requests.push_back({.arrival = 9s, .prompt_tokens = 1});
  trace.requests.push_back({.arrival = 1s, .after = 0, .prompt_tokens = 2});
  trace.requests.push_back({.arrival = 2s, .prompt_tokens = 3});
  trace.requests.push_back({.arrival = 1s, .after = 2, .prompt_tokens = 4});
  put_in_order(trace);
  ASSERT_EQ(trace.requests.size(), 4U);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 3);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 4);
  EXPECT_EQ(trace.requests[1].after, 0);
  EXPECT_EQ(trace.requests[3].prompt_tokens, 2);
  EXPECT_EQ(trace.requests[3].after, 2);
  cut(trace, 5s, 10s);
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[1].after, 0);
}

}  // namespace
}  // namespace sluice
