// Speculation changes when tokens come, and never which.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/rng.h"
#include "engine/engine_world.h"

namespace sluice {
namespace {

EngineOptions speculative(std::int32_t draft_tokens) {
  EngineOptions options;
  options.draft_tokens = draft_tokens;
  return options;
}

// How often guesses are right depends on how few tokens there are to draw.
TEST(Speculation, AnswersAreThoseWithout) {
  struct Case {
    const char* name;
    std::int32_t vocabulary;
    double least_accepted, most_accepted;  // share of the guesses
  };
  for (const Case& c : {
           Case{"all right", 1, 1.0, 1.0},
           Case{"most are wrong", 6, 0.01, 0.3},
           Case{"some are right", 2, 0.15, 0.6},
       }) {
    SCOPED_TRACE(c.name);
    const FakeModelOptions model{.vocabulary = c.vocabulary};
    EngineWorld w(model, speculative(4));
    w.submit(1, prompt_of(9), 180);
    w.run();
    EXPECT_EQ(w.answer(1).tokens, w.runner.expected_output(prompt_of(9), 180));
    EXPECT_EQ(w.answer(1).finish, FinishReason::kLength);
    const EngineStats stats = w.engine.stats();
    EXPECT_GT(stats.speculation.drafts, 0);
    EXPECT_GE(stats.speculation.draft_tokens, stats.speculation.drafts);
    EXPECT_EQ(stats.generated_tokens, 180);
    // Each step brings one token, and those that were guessed right.
    EXPECT_EQ(w.runner.steps() + stats.speculation.accepted_tokens, 180);
    EXPECT_EQ(stats.computed_prefill_tokens, 9) << "a guess is no prompt";
    const double accepted = static_cast<double>(stats.speculation.accepted_tokens) /
                            static_cast<double>(stats.speculation.draft_tokens);
    EXPECT_GE(accepted, c.least_accepted);
    EXPECT_LE(accepted, c.most_accepted);
    w.expect_all_memory_back();
  }
}

TEST(Speculation, OffGuessesNothing) {
  EngineWorld w({.vocabulary = 1}, speculative(0));
  w.submit(1, prompt_of(9), 50);
  w.run();
  EXPECT_EQ(w.engine.stats().speculation.drafts, 0);
  EXPECT_EQ(w.runner.steps(), 50);
}

TEST(Speculation, NeverGoesBeyondMaxTokensOrTheEnd) {
  for (std::int32_t max_tokens = 1; max_tokens <= 40; ++max_tokens) {
    for (const std::uint64_t end_one_in : {0U, 7U}) {
      const FakeModelOptions model{.vocabulary = 1, .end_one_in = end_one_in};
      EngineWorld w(model, speculative(6));
      w.submit(1, prompt_of(5), max_tokens);
      w.run();
      const auto expected = w.runner.expected_output(prompt_of(5), max_tokens);
      EXPECT_EQ(w.answer(1).tokens, expected);
      EXPECT_EQ(w.answer(1).finish, static_cast<std::int32_t>(expected.size()) < max_tokens
                                        ? FinishReason::kStop
                                        : FinishReason::kLength);
    }
  }
}

TEST(Speculation, ACancelledSequenceGivesAllBack) {
  EngineWorld w({.vocabulary = 1}, speculative(4));
  w.submit(1, prompt_of(9), 200);
  for (int i = 0; i < 12; ++i) w.step();
  EXPECT_GT(w.answer(1).tokens.size(), 20U);
  w.engine.cancel(RequestId{1});
  w.run();
  EXPECT_EQ(w.answer(1).finish, FinishReason::kCancelled);
  w.expect_all_memory_back();
}

// What is kept as a prefix is what was said, not what was guessed.
TEST(Speculation, NoGuessIsKeptAsAPrefix) {
  EngineWorld w({.vocabulary = 2}, speculative(6));
  for (std::uint64_t id = 1; id <= 20; ++id) {
    std::vector<Token> prompt = prompt_of(9);
    // The second asks on from the first's answer, and so on.
    if (id > 1)
      prompt.insert(prompt.end(), w.answer(id - 1).tokens.begin(), w.answer(id - 1).tokens.end());
    w.submit(id, prompt, 12);
    w.run();
    EXPECT_EQ(w.answer(id).tokens, w.runner.expected_output(prompt, 12));
    if (id > 1) {
      EXPECT_GE(w.answer(id).cached_tokens, 8);
    }
  }
}

// A window that is used up sooner ends sooner; nobody waits for memory inside it.
TEST(Speculation, AWindowEndsWithTheGrantThatIsUsedUp) {
  EngineOptions options = speculative(6);
  EngineWorld with({.num_blocks = 200, .vocabulary = 1}, options);
  EngineWorld without({.num_blocks = 200, .vocabulary = 1}, speculative(0));
  for (EngineWorld* w : {&with, &without}) {
    for (std::uint64_t id = 1; id <= 3; ++id)
      w->submit(id, prompt_of(9, static_cast<Token>(id)), 100);
    w->run();
  }
  EXPECT_LT(with.runner.steps(), without.runner.steps() / 3);
  EXPECT_EQ(with.engine.stats().windows.shortfall_recompute, 0);
  EXPECT_LE(with.engine.stats().kv.written_blocks, without.engine.stats().kv.total_blocks);
}

TEST(Speculation, RandomWorldsGiveExactAnswers) {
  std::int64_t accepted = 0;
  std::int64_t rejected = 0;
  std::int64_t pauses = 0;
  std::int64_t restarts = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const FakeModelOptions model{.num_blocks = 12 + static_cast<std::int32_t>(rng.below(40)),
                                 .block_tokens = 1 << rng.below(4),
                                 .vocabulary = 1 + static_cast<std::int32_t>(rng.below(4)),
                                 .end_one_in = rng.below(2) ? 40U : 0U};
    EngineOptions options = speculative(1 + static_cast<std::int32_t>(rng.below(8)));
    options.max_running = 1 + static_cast<std::int32_t>(rng.below(12));
    options.batch.max_step_tokens = options.max_running + static_cast<std::int32_t>(rng.below(40));
    options.kv.prefix_cache = rng.below(4) != 0;
    EngineWorld w(model, options, static_cast<std::int32_t>(rng.below(2) * rng.below(30)));
    const std::int32_t capacity = model.num_blocks * model.block_tokens;

    std::map<std::uint64_t, std::pair<std::vector<Token>, std::int32_t>> sent;
    for (std::uint64_t id = 1; id <= 30; ++id) {
      std::vector<Token> prompt(1 + rng.below(std::min(30, capacity - 1)));
      for (Token& token : prompt) token = static_cast<Token>(rng.below(3));
      const auto room = static_cast<std::uint64_t>(capacity) - prompt.size();
      const auto max_tokens =
          static_cast<std::int32_t>(1 + rng.below(std::min<std::uint64_t>(room, 60)));
      sent[id] = {prompt, max_tokens};
      w.submit(id, prompt, max_tokens, static_cast<std::int32_t>(rng.below(3)));
      for (std::uint64_t i = rng.below(6); i > 0; --i) w.step();
      if (rng.below(6) == 0) w.engine.cancel(RequestId{1 + rng.below(id)});
    }
    w.run();
    w.expect_all_memory_back();
    for (const auto& [id, request] : sent) {
      const auto& answer = w.answer(id);
      const auto expected = w.runner.expected_output(request.first, request.second);
      if (answer.finish == FinishReason::kCancelled) {
        ASSERT_LE(answer.tokens.size(), expected.size());
        EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), expected.begin()));
      } else {
        EXPECT_EQ(answer.tokens, expected) << "request " << id;
      }
    }
    const EngineStats stats = w.engine.stats();
    accepted += stats.speculation.accepted_tokens;
    rejected += stats.speculation.draft_tokens - stats.speculation.accepted_tokens;
    pauses += stats.windows.shortfall_pause;
    restarts += stats.windows.shortfall_recompute;
  }
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(rejected, 1000);
  EXPECT_GT(pauses, 0);
  EXPECT_GT(restarts, 0);
}

}  // namespace
}  // namespace sluice
