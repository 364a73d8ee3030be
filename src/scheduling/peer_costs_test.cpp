#include "scheduling/peer_costs.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace sluice {
namespace {

StepCost cost(double each, std::int64_t steps, std::int64_t prefill_steps) {
  return {each, each, each, each, each, steps, prefill_steps};
}

TEST(PeerCosts, JudgesByOwnStepsAsFarAsTheyGo) {
  struct Case {
    const char* name;
    StepCost own;
    double base;
    double prefill;
  };
  PeerCosts peers;
  peers.add(Role::kUnified, cost(3, 1000, 1000));
  for (const Case& c : {
           Case{"nothing seen", cost(7, 0, 0), 3, 3},
           Case{"half of what is enough", cost(7, 16, 16), 5, 5},
           Case{"enough", cost(7, 32, 32), 7, 7},
           Case{"decode only", cost(7, 500, 0), 7, 3},
           Case{"decode, and prefill at times", cost(7, 500, 8), 7, 4},
       }) {
    SCOPED_TRACE(c.name);
    const StepCost judged = peers.judge(Role::kUnified, c.own);
    EXPECT_DOUBLE_EQ(judged.base, c.base);
    EXPECT_DOUBLE_EQ(judged.per_decode_sequence, c.base);
    EXPECT_DOUBLE_EQ(judged.per_context_token, c.base);
    EXPECT_DOUBLE_EQ(judged.per_prefill_token, c.prefill);
    EXPECT_DOUBLE_EQ(judged.per_prefill_context, c.prefill);
  }
}

TEST(PeerCosts, AsksItsOwnRoleFirst) {
  PeerCosts peers;
  EXPECT_EQ(peers.judge(Role::kDecode, cost(7, 0, 0)).base, 7);  // nobody knows better
  peers.add(Role::kUnified, cost(3, 100, 100));
  EXPECT_EQ(peers.judge(Role::kDecode, cost(7, 0, 0)).base, 3);
  peers.add(Role::kDecode, cost(2, 100, 0));
  EXPECT_EQ(peers.judge(Role::kDecode, cost(7, 0, 0)).base, 2);
  EXPECT_EQ(peers.judge(Role::kDecode, cost(7, 0, 0)).per_prefill_token, 3);
  peers.remove(Role::kDecode, cost(2, 100, 0));
  EXPECT_EQ(peers.judge(Role::kDecode, cost(7, 0, 0)).base, 3);
}

// Sums kept by adding and taking away are those of who is there.
TEST(PeerCosts, NothingStaysOfWhoHasGone) {
  Rng rng(5);
  PeerCosts peers;
  std::vector<StepCost> there;
  for (int i = 0; i < 20000; ++i) {
    if (there.size() > 20 || (!there.empty() && rng.below(3) == 0)) {
      peers.remove(Role::kPrefill, there.back());
      there.pop_back();
    } else {
      const auto steps = static_cast<std::int64_t>(rng.below(60));
      there.push_back(cost(rng.uniform() * (rng.below(50) == 0 ? 1e5 : 1e-2), steps, steps / 2));
      peers.add(Role::kPrefill, there.back());
    }
  }
  for (const StepCost& c : there) peers.remove(Role::kPrefill, c);
  EXPECT_EQ(peers.judge(Role::kPrefill, cost(7, 0, 0)).base, 7);
  peers.add(Role::kPrefill, cost(2, 1, 1));
  EXPECT_NEAR(peers.judge(Role::kPrefill, cost(7, 0, 0)).base, 2, 1e-3);
}

TEST(PeerCosts, SaysWhenMuchMoreIsKnown) {
  PeerCosts peers;
  EXPECT_FALSE(peers.learned());
  peers.add(Role::kUnified, cost(1, 0, 0));
  EXPECT_FALSE(peers.learned());
  int times = 0;
  for (std::int64_t steps = 1; steps <= 1000; ++steps) {
    peers.remove(Role::kUnified, cost(1, steps - 1, 0));
    peers.add(Role::kUnified, cost(1, steps, 0));
    times += peers.learned() ? 1 : 0;
  }
  EXPECT_EQ(times, 6);  // at 1, 2, 4, 8, 16 and 32 steps
  peers.remove(Role::kUnified, cost(1, 1000, 0));
  EXPECT_TRUE(peers.learned());
  EXPECT_FALSE(peers.learned());
}

}  // namespace
}  // namespace sluice
