#include "engine/remedy.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

using namespace std::chrono_literals;

TEST(Remedy, TheLeastTimeWinsAndOfEqualsTheOneThatKeepsMore) {
  struct Case {
    const char* name;
    RemedyCosts costs;
    Remedy best;
  };
  for (const Case& c : {
           Case{"nothing else is possible", {{}, 5ms}, Remedy::kRecompute},
           Case{"pause is cheaper", {4ms, 5ms}, Remedy::kPause},
           Case{"pause is dearer", {6ms, 5ms}, Remedy::kRecompute},
           Case{"pause equals recompute", {5ms, 5ms}, Remedy::kPause},
       }) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(cheapest(c.costs), c.best);
  }
}

TEST(Remedy, RecomputingCountsStepsTokensAndContext) {
  const StepTimeModel model(
      {.base = 1, .per_prefill_token = 0.1, .per_decode_sequence = 9, .per_prefill_context = 0.01});
  // 10 tokens in steps of 4: three steps, 55 tokens of context read.
  EXPECT_NEAR(to_seconds(recompute_cost(model, 10, 4)), 3 + 1 + 0.55, 1e-6);
}

}  // namespace
}  // namespace sluice
