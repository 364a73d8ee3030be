#include "net/busy_share.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using namespace std::chrono_literals;

TimePoint at(Duration since_start) {
  return TimePoint{100s} + since_start;
}

TEST(BusyShare, IsOfTheLastSpanThatIsOver) {
  BusyShare busy;
  busy.update(5.0, at(0s));
  EXPECT_EQ(busy.share(), 0);
  busy.update(5.4, at(500ms));
  EXPECT_EQ(busy.share(), 0);  // not over yet
  busy.update(5.5, at(1s));
  EXPECT_DOUBLE_EQ(busy.share(), 0.5);
  busy.update(5.5, at(1900ms));
  EXPECT_DOUBLE_EQ(busy.share(), 0.5);
  busy.update(5.5, at(3s));
  EXPECT_EQ(busy.share(), 0);
}

TEST(BusyShare, AStepThatBeganBeforeTheSpanCannotMakeItMoreThanAll) {
  BusyShare busy;
  busy.update(0, at(0s));
  busy.update(4, at(1s));
  EXPECT_EQ(busy.share(), 1);
}

}  // namespace
}  // namespace sluice
