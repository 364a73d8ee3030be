#include "engine/drafter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "base/rng.h"

namespace sluice {
namespace {

using testing::ElementsAreArray;

TEST(Drafter, GuessesWhatFollowedTheSameWords) {
  struct Case {
    const char* name;
    std::vector<Token> tokens;
    std::int32_t most;
    std::vector<Token> drafts;
  };
  for (const Case& c : std::vector<Case>{
           {"too short", {1, 1, 1}, 4, {}},
           {"nothing repeats", {1, 2, 3, 4, 5, 6}, 4, {}},
           {"two tokens are no match", {1, 2, 7, 8, 1, 2}, 4, {}},
           {"three are", {1, 2, 3, 7, 8, 9, 1, 2, 3}, 3, {7, 8, 9}},
           {"no more than asked for", {1, 2, 3, 7, 8, 9, 1, 2, 3}, 1, {7}},
           {"none asked for", {1, 2, 3, 7, 8, 9, 1, 2, 3}, 0, {}},
           {"as many as follow, and on from what is guessed",
            {1, 2, 3, 7, 1, 2, 3},
            6,
            {7, 1, 2, 3, 7, 1}},
           {"the latest of equal ones", {1, 2, 3, 7, 0, 1, 2, 3, 8, 9, 1, 2, 3}, 2, {8, 9}},
           {"the longest before the latest",
            {5, 1, 2, 3, 7, 6, 6, 0, 1, 2, 3, 8, 9, 5, 1, 2, 3},
            2,
            {7, 6}},
           {"one token again and again", {4, 4, 4, 4}, 3, {4, 4, 4}},
           {"the beginning", {1, 2, 3, 1, 2, 3}, 2, {1, 2}},
           {"tokens of any value", {-1, 1 << 30, -5, 9, -1, 1 << 30, -5}, 1, {9}},
       }) {
    SCOPED_TRACE(c.name);
    Drafter drafter;
    EXPECT_THAT(drafter.guess(c.tokens, c.most, {}), ElementsAreArray(c.drafts));
    EXPECT_THAT(drafter.drafts(), ElementsAreArray(c.drafts));
    // Entered one by one: no difference.
    Drafter by_one;
    for (std::size_t n = 1; n < c.tokens.size(); ++n) {
      (void)by_one.guess(std::span(c.tokens).first(n), 1, {});
    }
    EXPECT_THAT(by_one.guess(c.tokens, c.most, {}), ElementsAreArray(c.drafts));
  }
}

// The tokens before each guess must stand before the place that it comes from.
TEST(Drafter, GuessesOnlyWhatHasFollowed) {
  Rng rng(7);
  std::int32_t guessed = 0;
  for (int world = 0; world < 50; ++world) {
    std::vector<Token> tokens;
    Drafter drafter;
    const std::uint64_t vocabulary = 2 + rng.below(6);
    for (int i = 0; i < 600; ++i) {
      tokens.push_back(static_cast<Token>(rng.below(vocabulary)));
      if (rng.below(4) == 0) continue;
      const auto drafts = drafter.guess(tokens, static_cast<std::int32_t>(rng.below(5)), {});
      if (drafts.empty()) continue;
      ++guessed;
      std::vector<Token> all = tokens;
      all.insert(all.end(), drafts.begin(), drafts.end());
      const auto pattern = std::span(all).subspan(tokens.size() - 3);  // and the drafts
      ASSERT_NE(std::search(all.begin(), all.end() - 1, pattern.begin(), pattern.end()),
                all.end() - static_cast<std::ptrdiff_t>(pattern.size()));
    }
  }
  EXPECT_GT(guessed, 1000);
}

TEST(Drafter, FindsAPlaceThatIsFarAway) {
  std::vector<Token> tokens(20000);
  std::iota(tokens.begin(), tokens.end(), 0);
  Drafter drafter;
  EXPECT_TRUE(drafter.guess(tokens, 8, {}).empty());
  tokens.insert(tokens.end(), {10, 11, 12});
  EXPECT_THAT(drafter.guess(tokens, 3, {}), ElementsAreArray({13, 14, 15}));
}

// Right or wrong as `right` says; counts the steps in which something was tried, where
// guesses are worth it that are right more often than not.
template <class Right>
std::int32_t tries(Drafter& drafter, std::vector<Token>& tokens, DraftRates& seen, int steps,
                   Right&& right) {
  std::int32_t tried = 0;
  for (int i = 0; i < steps; ++i) {
    tokens.push_back(1);
    const auto drafts = drafter.guess(tokens, 4, seen);
    if (drafts.empty() || drafter.acceptance() < 0.5) continue;
    const auto count = static_cast<std::int32_t>(drafts.size());
    drafter.observe(count, right(i) ? count : 0, seen);
    ++tried;
  }
  return tried;
}

TEST(Drafter, TriesEverMoreSeldomWhatIsWrong) {
  Drafter drafter;
  DraftRates seen;
  std::vector<Token> tokens;
  const std::int32_t first = tries(drafter, tokens, seen, 100, [](int) { return false; });
  EXPECT_GE(first, 2);
  EXPECT_LE(first, 10);
  EXPECT_LE(tries(drafter, tokens, seen, 4000, [](int) { return false; }), 35);
  // The next of its kind begins with what was learned.
  Drafter other;
  tokens.clear();
  for (int i = 0; i < 200; ++i) seen.observe(24, 4, 0, 0.01);
  EXPECT_LE(tries(other, tokens, seen, 100, [](int) { return false; }), 4);
}

TEST(Drafter, NoticesThatGuessesHaveBecomeRight) {
  Drafter drafter;
  DraftRates seen;
  std::vector<Token> tokens;
  (void)tries(drafter, tokens, seen, 300, [](int) { return false; });
  EXPECT_GT(tries(drafter, tokens, seen, 500, [](int) { return true; }), 300);
}

}  // namespace
}  // namespace sluice
