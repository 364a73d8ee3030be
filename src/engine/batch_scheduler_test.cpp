#include "engine/batch_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"

namespace sluice {
namespace {

using testing::ElementsAre;

// 1 ms a prefill token, 10 ms a step: the mixed target of 110 ms leaves about 100 tokens.
StepTimeModel one_ms_a_token() {
  return StepTimeModel({.base = 0.010, .per_prefill_token = 0.001});
}

BatchOptions options() {
  return {.max_step_tokens = 256,
          .min_chunk_tokens = 16,
          .mixed_step_target = std::chrono::milliseconds(110),
          .mixed_step_ratio = 100,
          .even_step_ratio = 100};
}

BatchCandidate decode(std::int32_t context) {
  return {
      .computed = context, .left_to_compute = 1, .granted_tokens = context + 8, .decoding = true};
}
BatchCandidate prefill(std::int32_t computed, std::int32_t left) {
  return {.computed = computed, .left_to_compute = left, .granted_tokens = computed + left + 8};
}

std::vector<std::pair<std::size_t, std::int32_t>> rows_of(const BatchPlan& plan) {
  std::vector<std::pair<std::size_t, std::int32_t>> rows;
  for (const BatchRow& row : plan.rows) rows.emplace_back(row.candidate, row.num_tokens);
  return rows;
}

TEST(BatchScheduler, Tables) {
  struct Case {
    const char* name;
    std::vector<BatchCandidate> candidates;
    std::vector<std::pair<std::size_t, std::int32_t>> rows;
  };
  for (const Case& c : {
           Case{"nothing runs", {}, {}},
           Case{"a short prompt alone goes whole", {prefill(0, 100)}, {{0, 100}}},
           Case{"a long prompt alone fills the step", {prefill(0, 1000)}, {{0, 256}}},
           Case{"two prompts share the budget, oldest first",
                {prefill(0, 200), prefill(0, 200)},
                {{0, 200}, {1, 56}}},
           Case{"decode first, prefill bounded by time",
                {prefill(0, 1000), decode(50)},
                {{1, 1}, {0, 100}}},
           Case{"a grant is never exceeded",
                {{.computed = 10, .left_to_compute = 50, .granted_tokens = 30}},
                {{0, 20}}},
           Case{"no grant, no row",
                {{.computed = 30, .left_to_compute = 1, .granted_tokens = 30, .decoding = true}},
                {}},
       }) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(rows_of(BatchScheduler(options()).plan(c.candidates, one_ms_a_token())), c.rows);
  }
}

TEST(BatchScheduler, SlowDecodeStillLetsPrefillMove) {
  // The decode rows alone are over the target: the least chunk is still computed.
  const StepTimeModel slow({.base = 1.0, .per_prefill_token = 0.001});
  const std::vector<BatchCandidate> candidates = {decode(10), prefill(0, 500)};
  EXPECT_EQ(rows_of(BatchScheduler(options()).plan(candidates, slow)),
            (std::vector<std::pair<std::size_t, std::int32_t>>{{0, 1}, {1, 16}}));
}

// 10 ms a step, 1 ms a row of either kind.
TEST(BatchScheduler, AMixedStepTakesTwiceWhatItsDecodeRowsTake) {
  const StepTimeModel model(
      {.base = 0.010, .per_prefill_token = 0.001, .per_decode_sequence = 0.001});
  struct Case {
    const char* name;
    std::size_t decode_rows;
    std::int32_t chunk;
  };
  for (const Case& c : {
           Case{"many rows: the ratio", 40, 50},           // 50 ms alone, 100 ms in all
           Case{"few rows: the least chunk", 1, 16},       // 11 ms alone, 22 ms would do
           Case{"very many rows: the target", 80, 20},     // 90 ms alone, 110 ms in all
           Case{"beyond the target: the least", 120, 16},  // 130 ms alone
       }) {
    SCOPED_TRACE(c.name);
    BatchOptions o = options();
    o.mixed_step_ratio = 2;
    std::vector<BatchCandidate> candidates(c.decode_rows, decode(0));
    candidates.push_back(prefill(0, 1000));
    EXPECT_NEAR(BatchScheduler(o).plan(candidates, model).shape.prefill_tokens, c.chunk, 1);
  }
}

// 10 ms a step, 1 ms a row of either kind; 30 decode rows take 40 ms.
TEST(BatchScheduler, AMixedStepIsAsEvenAsWhatIsLeftAllows) {
  const StepTimeModel model(
      {.base = 0.010, .per_prefill_token = 0.001, .per_decode_sequence = 0.001});
  struct Case {
    const char* name;
    std::int32_t left;  // of each of two prompts
    double ratio;
    std::int32_t chunk;
  };
  for (const Case& c : {
           Case{"few left: an even step", 50, 2, 20},          // half of 40 ms more
           Case{"more left: as long as it must", 120, 2, 30},  // 240 ms in eight steps
           Case{"many left: the ratio", 500, 2, 40},
           Case{"a ratio below that of even steps", 500, 1.4, 16},
       }) {
    SCOPED_TRACE(c.name);
    BatchOptions o = options();
    o.mixed_step_ratio = c.ratio;
    o.even_step_ratio = 1.5;
    std::vector<BatchCandidate> candidates(30, decode(0));
    candidates.push_back(prefill(0, c.left));
    candidates.push_back(prefill(0, c.left));
    EXPECT_NEAR(BatchScheduler(o).plan(candidates, model).shape.prefill_tokens, c.chunk, 1);
  }
}

TEST(BatchScheduler, SamplesOnlyAtTheLastKnownToken) {
  const std::vector<BatchCandidate> candidates = {prefill(0, 300), decode(5)};
  const BatchPlan plan = BatchScheduler(options()).plan(candidates, one_ms_a_token());
  ASSERT_EQ(plan.rows.size(), 2U);
  EXPECT_TRUE(plan.rows[0].samples);
  EXPECT_FALSE(plan.rows[1].samples);
}

TEST(BatchScheduler, PropertiesOverRandomSets) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::vector<BatchCandidate> candidates(rng.below(40));
    bool anything = false;
    for (auto& c : candidates) {
      c.computed = static_cast<std::int32_t>(rng.below(500));
      c.decoding = rng.below(2) == 0;
      c.left_to_compute = c.decoding ? 1 : 1 + static_cast<std::int32_t>(rng.below(600));
      c.granted_tokens = c.computed + static_cast<std::int32_t>(rng.below(40));
      anything |= c.granted_tokens > c.computed;
    }
    const BatchPlan plan = BatchScheduler(options()).plan(candidates, one_ms_a_token());
    std::int32_t total = 0;
    std::int32_t decodes = 0;
    std::vector<bool> used(candidates.size());
    for (const BatchRow& row : plan.rows) {
      const BatchCandidate& c = candidates.at(row.candidate);
      EXPECT_FALSE(used[row.candidate]);
      used[row.candidate] = true;
      EXPECT_GE(row.num_tokens, 1);
      EXPECT_LE(c.computed + row.num_tokens, c.granted_tokens);
      EXPECT_LE(row.num_tokens, c.left_to_compute);
      EXPECT_EQ(row.samples, row.num_tokens == c.left_to_compute);
      total += row.num_tokens;
      decodes += c.decoding ? 1 : 0;
    }
    EXPECT_LE(total, 256);
    EXPECT_EQ(plan.empty(), !anything);
    EXPECT_EQ(plan.shape.decode_sequences, decodes);
    EXPECT_EQ(plan.shape.prefill_tokens, total - decodes);
    for (std::size_t i = 0; i < candidates.size(); ++i) {  // decode never starves
      if (candidates[i].decoding && candidates[i].granted_tokens > candidates[i].computed) {
        EXPECT_TRUE(used[i]);
      }
    }
  }
}

TEST(BatchScheduler, BoundsTheTokensThatAStepScores) {
  BatchOptions o;
  o.max_scored_tokens = 10;
  const BatchScheduler scheduler(o);
  const std::vector<BatchCandidate> candidates{
      {.id = SequenceId{1}, .left_to_compute = 6, .granted_tokens = 100, .scored = true},
      {.id = SequenceId{2}, .left_to_compute = 30, .granted_tokens = 100, .scored = true},
      {.id = SequenceId{3}, .left_to_compute = 30, .granted_tokens = 100, .scored = true},
      {.id = SequenceId{4}, .left_to_compute = 30, .granted_tokens = 100}};
  const BatchPlan plan = scheduler.plan(candidates, StepTimeModel());
  ASSERT_EQ(plan.rows.size(), 3U);
  EXPECT_EQ(plan.rows[0].num_tokens, 6);
  EXPECT_TRUE(plan.rows[0].samples);
  EXPECT_EQ(plan.rows[1].num_tokens, 4);
  EXPECT_FALSE(plan.rows[1].samples);
  EXPECT_EQ(plan.rows[2].candidate, 3U);  // who wants no scores is not held up
  EXPECT_EQ(plan.rows[2].num_tokens, 30);
}

// 10 ms a step, 1 ms a guess: with one row that is 100 tokens a second without any.
TEST(BatchScheduler, GuessesWhereTheyBringMoreTokensASecond) {
  const auto guessing = [](std::int32_t drafts, double acceptance, std::int32_t granted = 100) {
    return BatchCandidate{.computed = 50,
                          .left_to_compute = 1,
                          .granted_tokens = 50 + granted,
                          .decoding = true,
                          .drafts = drafts,
                          .acceptance = acceptance};
  };
  struct Case {
    const char* name;
    std::vector<BatchCandidate> candidates;
    std::vector<std::int32_t> drafts;
  };
  for (const Case& c : {
           Case{"none to be had", {guessing(0, 1)}, {0}},
           Case{"all that are certain", {guessing(8, 1)}, {8}},
           Case{"not beyond the grant", {guessing(8, 1, 4)}, {3}},
           Case{"no room beside the row", {guessing(8, 1, 1)}, {0}},
           // 0.9 > 1/10, 0.81 > 1.9/11, ..., 0.349 > 6.51/19; but 0.314 < 6.86/20
           Case{"likely ones, until they are not", {guessing(20, 0.9)}, {10}},
           Case{"half of them right", {guessing(8, 0.5)}, {2}},
           Case{"right too seldom", {guessing(8, 0.09)}, {0}},
           Case{"what is tried in any case", {guessing(1, 1), guessing(8, 0.01)}, {1, 0}},
           Case{"among several the likeliest", {guessing(8, 0.2), guessing(3, 0.9)}, {0, 3}},
           // The budget of 20 for all.
           Case{"no more than a step may have",
                {guessing(8, 1), guessing(8, 1), guessing(8, 1)},
                {8, 8, 4}},
           // 100 rows bring 10,000 tokens a second: a guess that is half right does not pay.
           Case{"a step that is busy", std::vector<BatchCandidate>(100, guessing(8, 0.5)),
                std::vector<std::int32_t>(100, 0)},
       }) {
    SCOPED_TRACE(c.name);
    BatchOptions o = options();
    o.max_draft_tokens = 20;
    const BatchPlan plan = BatchScheduler(o).plan(c.candidates, one_ms_a_token());
    std::vector<std::int32_t> drafts;
    std::int32_t sum = 0;
    for (const BatchRow& row : plan.rows) {
      drafts.push_back(row.drafts);
      sum += row.drafts;
    }
    EXPECT_EQ(drafts, c.drafts);
    EXPECT_EQ(plan.draft_tokens, sum);
    EXPECT_EQ(plan.shape.prefill_tokens, sum);
  }
}

}  // namespace
}  // namespace sluice
