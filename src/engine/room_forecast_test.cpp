#include "engine/room_forecast.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kNow{1h};

TEST(RoomForecast, TheFirstPointFromWhichOnThereIsRoom) {
  struct Case {
    const char* name;
    std::vector<std::int64_t> demand;  // at 100 ms, 200 ms, ...
    std::int64_t more;
    std::int64_t blocks;
    Duration wait;
  };
  for (const Case& c : {Case{"at once", {50, 40, 30}, 0, 20, 100ms},
                        Case{"when some have ended", {95, 85, 30}, 0, 20, 300ms},
                        Case{"not before a peak to come", {50, 90, 40}, 0, 20, 300ms},
                        Case{"who has come since counts", {50, 40, 30}, 45, 20, 300ms},
                        Case{"never", {90, 95, 99}, 0, 20, 300ms}}) {
    SCOPED_TRACE(c.name);
    std::vector<Outlook> outlook;
    for (const std::int64_t blocks : c.demand) {
      outlook.push_back({100ms * static_cast<int>(outlook.size() + 1), blocks});
    }
    RoomForecast forecast;
    EXPECT_EQ(forecast.tell({RequestId{1}, c.blocks}, {kNow, outlook, c.more, 100}, kNow),
              kNow + c.wait);
  }
  EXPECT_GT(RoomForecast().tell({RequestId{1}, 5}, {kNow, {}, 0, 100}, kNow), kNow);
}

TEST(RoomForecast, OneHoleIsNotPromisedTwice) {
  const std::vector<Outlook> outlook = {{100ms, 95}, {200ms, 70}, {300ms, 40}, {400ms, 5}};
  RoomForecast forecast;
  const RoomForecast::Known known{kNow, outlook, 0, 100};
  EXPECT_EQ(forecast.tell({RequestId{1}, 30}, known, kNow), kNow + 200ms);
  EXPECT_EQ(forecast.tell({RequestId{2}, 30}, known, kNow), kNow + 300ms);
  EXPECT_EQ(forecast.tell({RequestId{3}, 30}, known, kNow), kNow + 400ms);
  EXPECT_EQ(forecast.tell({RequestId{1}, 30}, known, kNow), kNow + 200ms) << "told anew";
  forecast.forget(RequestId{3});
  forecast.forget(RequestId{2});
  EXPECT_EQ(forecast.tell({RequestId{4}, 30}, known, kNow), kNow + 300ms);
  EXPECT_EQ(forecast.tell({RequestId{5}, 30}, known, kNow + 5s), kNow + 5s + 5ms)
      << "nobody came, and the outlook is over";
}

// Whatever is asked in whatever order: at the time told, and at every point after it, the
// likely demand with all that were told so far has room; and at no earlier point it had.
TEST(RoomForecast, RandomOutlooksAreHonest) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const std::int64_t total = 100;
    std::vector<Outlook> outlook;
    Duration after = 5ms;
    for (int i = 0; i < 8; ++i) {
      after += 1ms * (1 + static_cast<int>(rng.below(300)));
      outlook.push_back({after, static_cast<std::int64_t>(rng.below(110))});
    }
    const RoomForecast::Known known{kNow, outlook, static_cast<std::int64_t>(rng.below(20)), total};
    RoomForecast forecast;
    std::vector<std::pair<TimePoint, std::int64_t>> told;
    for (std::uint64_t id = 1; id <= 6; ++id) {
      const auto blocks = static_cast<std::int64_t>(1 + rng.below(40));
      const TimePoint at = forecast.tell({RequestId{id}, blocks}, known, kNow);
      EXPECT_GT(at, kNow);
      const auto fits_from = [&](TimePoint from) {
        for (const Outlook& point : outlook) {
          const TimePoint when = known.begin + point.after;
          if (when < from) continue;
          std::int64_t demand = point.demand_blocks + known.more_blocks + blocks;
          for (const auto& [t, b] : told) demand += t <= when ? b : 0;
          if (demand > total) return false;
        }
        return true;
      };
      const TimePoint end = known.begin + outlook.back().after;
      if (at < end || fits_from(end)) {
        EXPECT_TRUE(fits_from(at));
        told.emplace_back(at, blocks);
      }
      for (const Outlook& point : outlook) {
        const TimePoint when = known.begin + point.after;
        EXPECT_FALSE(when < at && fits_from(when));
      }
    }
  }
}

}  // namespace
}  // namespace sluice
