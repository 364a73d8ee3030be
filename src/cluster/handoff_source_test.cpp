#include "cluster/handoff_source.h"

#include <gtest/gtest.h>

#include <vector>

namespace sluice {
namespace {

using namespace std::chrono_literals;

// A source of one sequence, and two targets that say what the test lets them say.
struct Asking final : SourceHost {
  TargetChoice choose(RequestId, const std::set<InstanceId>& refused, TimePoint) override {
    for (std::uint32_t i = 1; i <= 2; ++i) {
      if (!refused.contains(InstanceId{i})) return {Placement{InstanceId{i}, Incarnation{1}}, {}};
    }
    return {std::nullopt, Duration::zero()};
  }
  std::optional<ReserveAsk> describe(HandoffKey key) override { return ReserveAsk{.key = key}; }
  void send(const Placement& to, HandoffMessage message) override {
    if (std::holds_alternative<ReserveAsk>(message)) asked.push_back(to.instance.value);
    last = key_of(message);
  }
  void start_transfer(const Placement&, const Granted&, bool) override {}
  void cancel_transfer(HandoffKey) override {}
  std::optional<Commit> detach(HandoffKey, std::int32_t) override { return std::nullopt; }
  void resume(RequestId) override {}
  void release(RequestId) override {}
  void runs_at(RequestId, const Placement&) override {}
  void end_cancelled(RequestId) override {}

  std::vector<std::uint32_t> asked;
  HandoffKey last;
};

TEST(HandoffSource, WhoSaidNotBeforeIsNotAskedBefore) {
  Asking host;
  HandoffSource source({.max_tries = 3});
  const TimePoint begin{1h};
  const auto refuse = [&](std::uint32_t from, Duration after, TimePoint now) {
    source.on_message({InstanceId{from}, Incarnation{1}},
                      Refused{host.last, RefusalKind::kNotBefore, after, {}}, now, host);
  };
  source.begin({RequestId{7}, 0, 0}, begin, host);
  refuse(1, 500ms, begin);
  ASSERT_EQ(host.asked, (std::vector<std::uint32_t>{1, 2}));  // the other at once
  refuse(2, 140ms, begin);
  TimePoint now = begin;
  const auto sleep_until_asked = [&](std::size_t times) {
    int ticks = 0;
    while (host.asked.size() < times && ++ticks < 100) {
      now = source.next_tick();
      source.tick(now, host);
    }
    EXPECT_LE(ticks, 6) << "it looks too often";
  };
  sleep_until_asked(3);
  EXPECT_EQ(now, begin + 140ms);
  EXPECT_EQ(host.asked.back(), 2U);
  refuse(2, 1h, now);  // bounded by its patience
  sleep_until_asked(4);
  EXPECT_EQ(now, begin + 500ms);
  EXPECT_EQ(host.asked.back(), 1U);
  refuse(1, 0ms, now);  // no time at all: the least wait
  sleep_until_asked(5);
  EXPECT_EQ(now, begin + 520ms);
  EXPECT_EQ(source.stats().not_before, 4);
}

}  // namespace
}  // namespace sluice
