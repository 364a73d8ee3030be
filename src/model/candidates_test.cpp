#include "model/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace sluice {
namespace {

std::vector<Candidate> random_candidates(Rng& rng, std::size_t n) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < n; ++i) {
    float weight = static_cast<float>(std::exp(-8.0 * rng.uniform()));
    if (rng.below(8) == 0) weight = 0.125F;  // equal ones
    candidates.push_back({static_cast<Token>(i), weight});
  }
  return candidates;
}

double total_of(const std::vector<Candidate>& candidates) {
  double total = 0;
  for (const Candidate& c : candidates) total += static_cast<double>(c.weight);
  return total;
}

std::vector<Token> sorted_tokens(const std::vector<Candidate>& candidates) {
  std::vector<Token> tokens;
  for (const Candidate& c : candidates) tokens.push_back(c.token);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

// The textbook's way: sort all, add up until the share is reached.
template <class Before>
std::vector<Token> by_sorting(std::vector<Candidate> all, double wanted, const Before& before) {
  std::sort(all.begin(), all.end(), before);
  std::vector<Candidate> kept;
  for (const Candidate& c : all) {
    kept.push_back(c);
    wanted -= static_cast<double>(c.weight);
    if (wanted <= 0) break;
  }
  return sorted_tokens(kept);
}

TEST(Candidates, TopPIsTheHeaviestThatReachTheShare) {
  Rng rng(1);
  for (int round = 0; round < 300; ++round) {
    const auto all = random_candidates(rng, 1 + rng.below(700));
    // Shares that rounding cannot move across a boundary.
    const float p = static_cast<float>(0.01 + 0.98 * rng.uniform());
    auto kept = all;
    keep_top_p(kept, p, total_of(all));
    const auto want = by_sorting(all, static_cast<double>(p) * total_of(all), [](auto& a, auto& b) {
      return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
    });
    ASSERT_EQ(sorted_tokens(kept), want) << round;
  }
}

TEST(Candidates, TypicalIsTheLeastSurprising) {
  Rng rng(2);
  for (int round = 0; round < 300; ++round) {
    const auto all = random_candidates(rng, 1 + rng.below(300));
    const double total = total_of(all);
    double entropy = 0;
    for (const auto& c : all) entropy -= c.weight / total * std::log(c.weight / total);
    const auto distance = [&](const Candidate& c) {
      return std::abs(-std::log(static_cast<double>(c.weight) / total) - entropy);
    };
    const float p = static_cast<float>(0.01 + 0.98 * rng.uniform());
    auto kept = all;
    keep_typical(kept, p);
    const auto want = by_sorting(all, static_cast<double>(p) * total, [&](auto& a, auto& b) {
      return distance(a) != distance(b) ? distance(a) < distance(b) : a.token < b.token;
    });
    ASSERT_EQ(sorted_tokens(kept), want) << round;
  }
}

TEST(Candidates, MinPKeepsTheShareOfTheHeaviest) {
  std::vector<Candidate> candidates = {{0, 1.0F}, {1, 0.5F}, {2, 0.1F}, {3, 0.05F}, {4, 0.2F}};
  keep_min_p(candidates, 0.2F);
  EXPECT_EQ(sorted_tokens(candidates), (std::vector<Token>{0, 1, 4}));
}

TEST(Candidates, OneAlwaysStays) {
  for (const float p : {0.0F, 1e-9F}) {
    std::vector<Candidate> candidates = {{0, 0.1F}, {1, 0.7F}, {2, 0.2F}};
    auto top = candidates;
    keep_top_p(top, p, 1.0);
    EXPECT_EQ(sorted_tokens(top), (std::vector<Token>{1}));
    keep_typical(candidates, p);
    EXPECT_EQ(candidates.size(), 1U);
  }
  std::vector<Candidate> even = {{0, 0.5F}, {1, 0.5F}};
  keep_min_p(even, 1.0F);
  EXPECT_EQ(even.size(), 2U);
}

TEST(Candidates, DrawFollowsTheWeights) {
  const std::vector<Candidate> candidates = {{7, 1.0F}, {8, 2.0F}, {9, 5.0F}};
  Rng rng(3);
  std::map<Token, int> counts;
  constexpr int kDraws = 80'000;
  for (int i = 0; i < kDraws; ++i) ++counts[draw(candidates, rng)];
  double chi = 0;
  for (const Candidate& c : candidates) {
    const double want = kDraws * static_cast<double>(c.weight) / 8;
    chi += (counts[c.token] - want) * (counts[c.token] - want) / want;
  }
  EXPECT_LT(chi, 13.8);  // two degrees of freedom, one in a thousand
}

}  // namespace
}  // namespace sluice
