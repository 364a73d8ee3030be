#include "memory/likely_demand.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/rng.h"

namespace sluice {
namespace {

// Sequences that hold `blocks` each and are there still with probability `lives`.
struct Holder {
  double blocks = 0;
  double lives = 0;
};

LikelyDemand demand_of(const std::vector<Holder>& holders) {
  LikelyDemand demand;
  for (const Holder& h : holders) {
    demand.all += h.blocks;
    demand.mean += h.lives * h.blocks;
    demand.variance += h.lives * (1 - h.lives) * h.blocks * h.blocks;
  }
  return demand;
}

// How often demand is above `blocks`.
double share_above(const std::vector<Holder>& holders, double blocks, Rng& rng) {
  constexpr int kDraws = 40'000;
  int above = 0;
  for (int i = 0; i < kDraws; ++i) {
    double sum = 0;
    for (const Holder& h : holders) sum += rng.uniform() < h.lives ? h.blocks : 0;
    above += sum > blocks ? 1 : 0;
  }
  return static_cast<double>(above) / kDraws;
}

// Of all sizes and ages: with many a quantile that is stated is met; where only one or
// two are likely to end, it is up to three times bolder than it says.
TEST(LikelyDemand, QuantilesOfSumsAreMet) {
  Rng rng(1);
  for (const int count : {8, 25, 100, 800}) {
    for (const double least : {0.6, 0.9}) {
      std::vector<Holder> holders;
      for (int i = 0; i < count; ++i) {
        const double size = 1 / (0.05 + rng.uniform());  // some twenty times others
        holders.push_back({size, least + (1 - least) * rng.uniform()});
      }
      const LikelyDemand demand = demand_of(holders);
      for (const double risk : {0.1, 0.3}) {
        SCOPED_TRACE(fmt::format("{} sequences, {} live, risk {}", count, least, risk));
        const double share = share_above(holders, demand.at(deviations_for(risk)), rng);
        EXPECT_LE(share, (count < 100 ? 3.0 : 1.3) * risk);
        EXPECT_GE(share, (count < 100 ? 0.0 : 0.6) * risk);
      }
    }
  }
}

TEST(LikelyDemand, NeverBeyondAllAndMonotone) {
  Rng rng(2);
  for (int i = 0; i < 2000; ++i) {
    LikelyDemand demand;
    demand.all = 1000 * rng.uniform();
    demand.mean = demand.all * rng.uniform();
    demand.variance = demand.all * demand.all * rng.uniform() * rng.uniform();
    double last = -1e18;
    for (const double z : {-2.0, -0.5, 0.0, 1.0, 3.0, 8.0}) {
      EXPECT_LE(demand.at(z), demand.all);
      EXPECT_GE(demand.at(z), last);
      last = demand.at(z);
    }
    const double z = 2 * rng.uniform() - 1;
    if (demand.at(z) < demand.all) {
      EXPECT_NEAR(demand.deviations_to(demand.at(z)), z, 1e-6);
    }
    EXPECT_EQ(demand.deviations_to(demand.all), LikelyDemand::kCertain);
  }
}

TEST(LikelyDemand, CertainWhereNothingCanHappen) {
  const LikelyDemand none_ends{.all = 100, .mean = 100, .variance = 0};
  EXPECT_EQ(none_ends.at(3), 100);
  EXPECT_EQ(none_ends.deviations_to(100), LikelyDemand::kCertain);
  EXPECT_EQ(none_ends.deviations_to(99), -LikelyDemand::kCertain);
  const LikelyDemand some_end{.all = 100, .mean = 60, .variance = 0};
  EXPECT_EQ(some_end.at(3), 60);
  EXPECT_EQ(some_end.deviations_to(60), LikelyDemand::kCertain);
  EXPECT_EQ(some_end.deviations_to(59), -LikelyDemand::kCertain);
}

TEST(LikelyDemand, TailsAndDeviationsAreInverse) {
  EXPECT_NEAR(deviations_for(0.1), 1.2816, 1e-4);
  EXPECT_NEAR(deviations_for(0.5), 0, 1e-9);
  for (const double p : {1e-4, 0.01, 0.3, 0.9}) {
    EXPECT_NEAR(upper_tail(deviations_for(p)), p, 1e-9);
  }
}

}  // namespace
}  // namespace sluice
