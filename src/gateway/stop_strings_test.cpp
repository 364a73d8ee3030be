#include "gateway/stop_strings.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace sluice {
namespace {

TEST(StopStrings, HoldBackWhatMayBeABeginning) {
  StopStrings stops({"STOP", "end"});
  EXPECT_EQ(stops.push("a S"), "a ");
  EXPECT_EQ(stops.push("T"), "");
  EXPECT_EQ(stops.push("Ax e"), "STAx ");
  EXPECT_EQ(stops.push("nST"), "en");
  EXPECT_EQ(stops.push("OPmore"), "");
  EXPECT_TRUE(stops.stopped());
  EXPECT_EQ(stops.push("more"), "");
  EXPECT_EQ(stops.finish(), "");
}

TEST(StopStrings, GiveBackWhatWasNotOne) {
  StopStrings stops({"STOP"});
  EXPECT_EQ(stops.push("xSTO"), "x");
  EXPECT_EQ(stops.finish(), "STO");
  EXPECT_FALSE(stops.stopped());
}

// Against the plain definition: cut before the match that ends first, the
// longest one there.
std::string expected_text(const std::string& text, const std::vector<std::string>& stops) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (stop.size() <= end && text.compare(end - stop.size(), stop.size(), stop) == 0) {
        longest = std::max(longest, stop.size());
      }
    }
    if (longest > 0) return text.substr(0, end - longest);
  }
  return text;
}

TEST(StopStrings, AgreeWithTheirDefinition) {
  Rng rng(7);
  const auto word = [&rng](std::size_t most) {
    std::string text;
    for (std::size_t i = 1 + rng.below(most); i > 0; --i) {
      text.push_back(static_cast<char>('a' + rng.below(2)));
    }
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t i = rng.below(4); i > 0; --i) stops.push_back(word(5));
    const std::string text = word(16);
    StopStrings machine(stops);
    std::string shown;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = std::min(text.size() - at, 1 + rng.below(3));
      shown += machine.push(text.substr(at, size));
      at += size;
      // Nothing is shown that has to be taken back.
      ASSERT_TRUE(expected_text(text, stops).starts_with(shown));
    }
    shown += machine.finish();
    ASSERT_EQ(shown, expected_text(text, stops));
  }
}

}  // namespace
}  // namespace sluice
