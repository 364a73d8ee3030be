#include "model/logits.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace sluice {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> random_logits(Rng& rng, std::size_t n) {
  std::vector<float> logits(n);
  for (float& v : logits) {
    v = static_cast<float>(rng.uniform() * 40 - 20);
    if (rng.below(10) == 0) v = std::floor(v);  // equal values
    if (rng.below(30) == 0) v = -kInf;
  }
  return logits;
}

TEST(Logits, ArgmaxIsTheFirstOfTheLargest) {
  EXPECT_EQ(argmax({}), -1);
  EXPECT_EQ(argmax(std::vector<float>(200, -kInf)), -1);
  EXPECT_EQ(argmax(std::vector<float>(200, kNan)), -1);
  Rng rng(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<float> logits = random_logits(rng, 1 + rng.below(400));
    if (rng.below(2) == 0) logits[rng.below(logits.size())] = kNan;
    Token want = -1;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > (want < 0 ? -kInf : logits[static_cast<std::size_t>(want)])) {
        want = static_cast<Token>(i);
      }
    }
    ASSERT_EQ(argmax(logits), want);
  }
}

TEST(Logits, BestOfIsAPrefixOfTheSortedRow) {
  Rng rng(2);
  for (int round = 0; round < 500; ++round) {
    const std::vector<float> logits = random_logits(rng, 1 + rng.below(1000));
    std::vector<Logit> want;
    for (std::size_t i = 0; i < logits.size(); ++i) {
      if (logits[i] > -kInf) want.push_back({logits[i], static_cast<Token>(i)});
    }
    std::sort(want.begin(), want.end());
    const std::size_t n = rng.below(60) == 0 ? logits.size() + 5 : rng.below(50);
    want.resize(std::min(want.size(), n));
    const std::vector<Logit> got = best_of(logits, n);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].token, want[i].token) << round;
      ASSERT_EQ(got[i].value, want[i].value);
    }
  }
}

TEST(Logits, FastExpIsClose) {
  EXPECT_EQ(fast_exp(0.0F), 1.0F);
  EXPECT_EQ(fast_exp(-kInf), 0.0F);
  EXPECT_EQ(fast_exp(kNan), 0.0F);
  for (float x = -86.9F; x <= 0.0F; x += 0.001F) {
    const double want = std::exp(static_cast<double>(x));
    ASSERT_NEAR(static_cast<double>(fast_exp(x)) / want, 1.0, 1e-5) << x;
    if (x > -20) {
      ASSERT_NEAR(static_cast<double>(fast_exp(x)) / want, 1.0, 2e-6) << x;
    }
  }
}

TEST(Logits, ExpSumAddsUp) {
  Rng rng(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> logits = random_logits(rng, 1 + rng.below(2000));
    logits[0] = 3.0F;  // something is possible
    const float max = logits[static_cast<std::size_t>(argmax(logits))];
    double want = 0;
    for (const float v : logits) want += std::exp((static_cast<double>(v) - max) * 0.7);
    std::vector<float> blocks;
    EXPECT_NEAR(exp_sum(logits, max, 0.7F, &blocks) / want, 1.0, 1e-5);
    EXPECT_EQ(blocks.size(), (logits.size() + kExpBlock - 1) / kExpBlock);
    EXPECT_NEAR(std::accumulate(blocks.begin(), blocks.end(), 0.0) / want, 1.0, 1e-5);
  }
}

}  // namespace
}  // namespace sluice
