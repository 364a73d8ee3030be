#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "base/rng.h"
#include "engine/engine_world.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;
using World = EngineWorld;

TEST(Engine, AnswersOneRequest) {
  World w;
  w.submit(1, prompt_of(9), 12);
  w.run();
  EXPECT_EQ(w.answer(1).finish, FinishReason::kLength);
  EXPECT_EQ(w.answer(1).tokens, w.runner.expected_output(prompt_of(9), 12));
  w.expect_all_memory_back();
}

TEST(Engine, TellsOfThePromptOnRequest) {
  EngineOptions options;
  options.batch.max_step_tokens = 8;
  World w({}, options);
  const auto ask = [&](std::uint64_t id, bool report, Token first = 1) {
    auto request = std::make_unique<Request>();
    request->id = RequestId{id};
    request->prompt = prompt_of(21, first);
    request->max_tokens = 3;
    request->report_progress = report;
    request->arrival = w.clock.now();
    w.engine.submit(std::move(request));
    w.run();
    return w.answer(id).progress;
  };
  EXPECT_TRUE(ask(1, false, 100).empty());
  EXPECT_EQ(ask(2, true), (std::vector<std::int32_t>{0, 8, 16, 21}));
  const std::int32_t cached = (ask(3, true), w.answer(3).cached_tokens);
  EXPECT_GT(cached, 0);
  EXPECT_EQ(w.answer(3).progress, (std::vector<std::int32_t>{cached, 21})) << "the rest in one";
  EXPECT_EQ(w.answer(3).tokens, w.answer(2).tokens);
}

TEST(Engine, StopsAtTheEndOfGeneration) {
  World w({.end_one_in = 5});
  w.submit(1, prompt_of(9), 200);
  w.run();
  const auto expected = w.runner.expected_output(prompt_of(9), 200);
  ASSERT_LT(expected.size(), 200U);
  EXPECT_EQ(w.answer(1).finish, FinishReason::kStop);
  EXPECT_EQ(w.answer(1).tokens, expected);
}

void expect_scores(const Recorder::Answer& answer, const std::vector<Token>& prompt) {
  ASSERT_EQ(answer.scores.size(), prompt.size() - 1);
  for (std::size_t i = 0; i < answer.scores.size(); ++i) {
    EXPECT_EQ(answer.scores[i].token, prompt[i + 1]);
    EXPECT_EQ(answer.scores[i].rank, FakeModelRunner::expected_rank(prompt, i + 1)) << i;
  }
}

TEST(Engine, ScoresAPromptWhateverIsCachedAndHoweverItIsChunked) {
  EngineOptions options;
  options.batch.max_scored_tokens = 7;
  World w({}, options);
  const auto prompt = prompt_of(40);
  w.submit(1, prompt, 3);
  w.run();
  EXPECT_TRUE(w.answer(1).scores.empty());
  w.submit(2, prompt, 3, 0, 0);  // would find all of it in the prefix cache
  w.submit(3, prompt_of(33, 200), 5, 0, 2);
  w.submit(4, {8}, 2, 0, 0);
  w.run();
  expect_scores(w.answer(2), prompt);
  EXPECT_EQ(w.answer(2).cached_tokens, 0);
  EXPECT_EQ(w.answer(2).tokens, w.answer(1).tokens);
  expect_scores(w.answer(3), prompt_of(33, 200));
  EXPECT_TRUE(w.answer(4).scores.empty());
  EXPECT_EQ(w.answer(4).tokens.size(), 2U);
  w.expect_all_memory_back();
}

TEST(Engine, ScoresAPromptOnceAlthoughItIsRestarted) {
  EngineOptions options;
  options.kv.policy = MemoryPolicy::kPaged;  // the one that restarts
  World w({.num_blocks = 16}, options);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    w.submit(id, prompt_of(8, static_cast<Token>(100 * id)), 40, 0, 0);
  }
  w.run();
  EXPECT_GT(w.engine.stats().preemptions, 0);
  for (std::uint64_t id = 1; id <= 4; ++id) {
    const auto prompt = prompt_of(8, static_cast<Token>(100 * id));
    expect_scores(w.answer(id), prompt);
    EXPECT_EQ(w.answer(id).tokens, w.runner.expected_output(prompt, 40));
  }
}

TEST(Engine, RefusesWithNumbers) {
  struct Case {
    const char* name;
    std::size_t prompt;
    std::int32_t max_tokens;
    ErrorCode code;
    const char* says;
  };
  for (const Case& c : {
           Case{"no prompt", 0, 5, ErrorCode::kInvalidArgument, "at least 1 prompt token"},
           Case{"nothing to generate", 5, 0, ErrorCode::kInvalidArgument, "has 5 and 0"},
           Case{"over the context", 100, 50, ErrorCode::kNeverFits,
                "150 tokens; the context is 128"},
           Case{"over the memory", 60, 40, ErrorCode::kNeverFits,
                "100 tokens need 25 KV blocks of 4 tokens; this instance has 20"},
       }) {
    SCOPED_TRACE(c.name);
    World w({.num_blocks = 20}, {.max_context = 128});
    w.submit(1, prompt_of(c.prompt), c.max_tokens);
    w.run();
    EXPECT_EQ(w.answer(1).finish, FinishReason::kError);
    EXPECT_EQ(w.answer(1).error.code, c.code);
    EXPECT_THAT(w.answer(1).error.message, testing::HasSubstr(c.says));
    w.expect_all_memory_back();
  }
}

TEST(Engine, RefusesWhenItsQueueIsFull) {
  World w({}, {.max_running = 1, .max_waiting = 2});
  for (std::uint64_t id = 1; id <= 3; ++id) w.submit(id, prompt_of(4), 4);
  EXPECT_EQ(w.engine.load().waiting_requests, 2);
  w.run();
  EXPECT_EQ(w.answer(3).error.code, ErrorCode::kBusy);
  EXPECT_EQ(w.answer(1).finish, FinishReason::kLength);
  EXPECT_EQ(w.answer(2).finish, FinishReason::kLength);
}

TEST(Engine, SharedPrefixIsReusedExactly) {
  World w;
  w.submit(1, prompt_of(30), 5);
  w.run();
  auto longer = prompt_of(30);
  longer.insert(longer.end(), {500, 501, 502});
  w.submit(2, longer, 5);
  w.submit(3, prompt_of(30), 5);  // the same prompt: at least its last token is computed
  w.run();
  EXPECT_EQ(w.answer(1).cached_tokens, 0);
  EXPECT_GE(w.answer(2).cached_tokens, 28);
  EXPECT_GE(w.answer(3).cached_tokens, 26);
  EXPECT_LT(w.answer(3).cached_tokens, 30);
  EXPECT_EQ(w.answer(2).tokens, w.runner.expected_output(longer, 5));
  EXPECT_EQ(w.answer(3).tokens, w.runner.expected_output(prompt_of(30), 5));
}

TEST(Engine, ATwinWaitsForThePrefixBeingComputed) {
  World w({.num_blocks = 256}, {.batch = {.max_step_tokens = 16}});
  for (std::uint64_t id = 1; id <= 4; ++id) w.submit(id, prompt_of(64), 4);
  w.run();
  for (std::uint64_t id = 2; id <= 4; ++id) {
    EXPECT_GE(w.answer(id).cached_tokens, 48) << id;
    EXPECT_EQ(w.answer(id).tokens, w.runner.expected_output(prompt_of(64), 4));
  }
  EXPECT_LE(w.engine.stats().computed_prefill_tokens, 64 + 3 * 16);
}

TEST(Engine, CancelFreesAtOnceInEveryState) {
  for (int steps = 0; steps < 12; ++steps) {
    SCOPED_TRACE(steps);
    World w({}, {.max_running = 2, .batch = {.max_step_tokens = 8}});
    for (std::uint64_t id = 1; id <= 4; ++id) {
      w.submit(id, prompt_of(20, static_cast<Token>(100 * id)), 10);
    }
    for (int i = 0; i < steps; ++i) w.step();
    for (std::uint64_t id = 1; id <= 4; ++id) w.engine.cancel(RequestId{id});
    w.engine.cancel(RequestId{77});  // unknown: ignored
    w.engine.check_invariants();
    w.expect_all_memory_back();
    w.run();
    for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_NE(w.answer(id).finish, FinishReason::kNone);
  }
}

TEST(Engine, ADeviceFailureEndsEveryRequest) {
  World w;
  w.submit(1, prompt_of(9), 12);
  w.submit(2, prompt_of(7), 12);
  w.step();
  w.runner.fail_next_step();
  w.step();
  EXPECT_EQ(w.answer(1).finish, FinishReason::kError);
  EXPECT_EQ(w.answer(2).finish, FinishReason::kError);
  w.expect_all_memory_back();
  w.submit(3, prompt_of(5), 3);  // and it goes on
  w.run();
  EXPECT_EQ(w.answer(3).tokens, w.runner.expected_output(prompt_of(5), 3));
}

TEST(Engine, HigherPriorityIsAdmittedFirst) {
  World w({}, {.max_running = 1});
  w.submit(1, prompt_of(4, 10), 2);
  w.submit(2, prompt_of(4, 20), 2);
  w.submit(3, prompt_of(4, 30), 2, /*priority=*/5);
  std::vector<std::uint64_t> order;
  while (!w.engine.idle()) {
    w.step();
    for (const auto& [id, answer] : w.out.answers) {
      if (answer.finish != FinishReason::kNone &&
          std::count(order.begin(), order.end(), id.value) == 0)
        order.push_back(id.value);
    }
  }
  EXPECT_EQ(order.front(), 3U);
}

// A holds three blocks until the window's end, B needs eight of ten: a shorter
// window for A makes room at once.
TEST(Engine, AnArrivalThatDoesNotFitRenewsTheWindowEarly) {
  EngineOptions options;
  options.kv.prefix_cache = false;
  World w({.num_blocks = 10}, options);
  w.submit(1, prompt_of(4), 8);
  w.step();
  EXPECT_EQ(w.engine.stats().kv.granted_blocks, 3);
  w.submit(2, prompt_of(28, 100), 3);
  w.step();
  EXPECT_EQ(w.engine.stats().windows.early_renewals, 1);
  EXPECT_EQ(w.answer(2).tokens.size(), 1U) << "not admitted in mid-window";
  w.run();
  EXPECT_EQ(w.engine.stats().preemptions, 0);
  EXPECT_EQ(w.answer(1).tokens, w.runner.expected_output(prompt_of(4), 8));
  EXPECT_EQ(w.answer(2).tokens, w.runner.expected_output(prompt_of(28, 100), 3));
}

// The property that matters: whatever the arrivals, cancellations, memory and
// batch limits, every answer is the one that the model gives alone.
TEST(Engine, RandomWorldsGiveExactAnswers) {
  std::int64_t pauses = 0;
  std::int64_t restarts = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const FakeModelOptions model{.num_blocks = 12 + static_cast<std::int32_t>(rng.below(40)),
                                 .block_tokens = 1 << rng.below(4),
                                 .end_one_in = rng.below(2) ? 20U : 0U};
    EngineOptions options;
    options.max_running = 1 + static_cast<std::int32_t>(rng.below(12));
    options.batch.max_step_tokens = options.max_running + static_cast<std::int32_t>(rng.below(40));
    options.kv.prefix_cache = rng.below(4) != 0;
    // Some have host memory, for all or for some of what may have to wait.
    World w(model, options, static_cast<std::int32_t>(rng.below(2) * rng.below(30)));
    const std::int32_t capacity = model.num_blocks * model.block_tokens;

    std::map<std::uint64_t, std::pair<std::vector<Token>, std::int32_t>> sent;
    std::vector<bool> cancelled(41);
    for (std::uint64_t id = 1; id <= 40; ++id) {
      std::vector<Token> prompt =
          prompt_of(1 + rng.below(30), static_cast<Token>(1 + 50 * rng.below(3)));
      prompt.resize(std::min<std::size_t>(prompt.size(), static_cast<std::size_t>(capacity) - 1));
      const auto room = static_cast<std::uint64_t>(capacity) - prompt.size();
      const auto max_tokens =
          static_cast<std::int32_t>(1 + rng.below(std::min<std::uint64_t>(room, 40)));
      sent[id] = {prompt, max_tokens};
      w.submit(id, prompt, max_tokens, static_cast<std::int32_t>(rng.below(3)));
      for (std::uint64_t i = rng.below(6); i > 0; --i) w.step();
      if (rng.below(5) == 0) {
        const std::uint64_t victim = 1 + rng.below(id);
        cancelled[victim] = true;
        w.engine.cancel(RequestId{victim});
      }
    }
    w.run();
    w.expect_all_memory_back();
    pauses += w.engine.stats().windows.shortfall_pause;
    restarts += w.engine.stats().windows.shortfall_recompute;
    for (const auto& [id, request] : sent) {
      const auto& answer = w.answer(id);
      const auto expected = w.runner.expected_output(request.first, request.second);
      if (cancelled[id] && answer.finish == FinishReason::kCancelled) {
        ASSERT_LE(answer.tokens.size(), expected.size());
        EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), expected.begin()));
      } else {
        EXPECT_EQ(answer.tokens, expected) << "request " << id;
        EXPECT_TRUE(answer.finish == FinishReason::kStop || answer.finish == FinishReason::kLength);
      }
    }
  }
  EXPECT_GT(pauses, 0);
  EXPECT_GT(restarts, 0);
}

// A world that expects short answers, so that it admits two sequences which then
// outgrow it.
World shortage(std::int32_t host_blocks, Duration copy = std::chrono::microseconds(1)) {
  EngineOptions options;
  options.kv.prefix_cache = false;
  options.host_block_copy = copy;
  return World({.num_blocks = 20}, options, host_blocks);
}
void teach_short_answers(World& w) {
  for (std::uint64_t id = 1000; id < 1200; ++id) {
    auto request = std::make_unique<Request>();
    request->id = RequestId{id};
    request->prompt = prompt_of(4);
    request->max_tokens = 8;
    request->sampling.forced_length = 2;
    w.engine.submit(std::move(request));
    w.run();
  }
}
void submit_two(World& w) {
  teach_short_answers(w);
  w.submit(1, prompt_of(20), 40);
  w.submit(2, prompt_of(20, 100), 40);
}
void run_until_paused(World& w) {
  for (int i = 0; i < 1000 && w.engine.stats().host.paused_sequences == 0; ++i) w.step();
  ASSERT_EQ(w.engine.stats().host.paused_sequences, 1);
}
void expect_right_answers(World& w) {
  EXPECT_EQ(w.answer(1).tokens, w.runner.expected_output(prompt_of(20), 40));
  EXPECT_EQ(w.answer(2).tokens, w.runner.expected_output(prompt_of(20, 100), 40));
}

TEST(Engine, AShortageIsAnsweredByTheCheapestRemedy) {
  struct Case {
    const char* name;
    std::int32_t host_blocks;
    Duration copy;  // predicted, a block
    std::int64_t pauses;
    std::int64_t recomputations;
  };
  for (const Case& c : {
           Case{"no host memory", 0, 1us, 0, 1},
           Case{"copying is cheap", 16, 1us, 1, 0},
           Case{"copying is dear", 16, 1s, 0, 1},
           Case{"host memory is too small", 3, 1us, 0, 1},
       }) {
    SCOPED_TRACE(c.name);
    World w = shortage(c.host_blocks, c.copy);
    submit_two(w);
    w.run();
    expect_right_answers(w);
    const WindowStats windows = w.engine.stats().windows;
    EXPECT_EQ(windows.shortfall_pause, c.pauses);
    EXPECT_EQ(windows.shortfall_recompute, c.recomputations);
    EXPECT_EQ(w.engine.stats().host.resumed, c.pauses);
    w.expect_all_memory_back();
  }
}

TEST(Engine, APausedSequenceComputesNothingTwice) {
  World w = shortage(16);
  submit_two(w);
  const std::int64_t before = w.engine.stats().computed_prefill_tokens;
  w.run();
  expect_right_answers(w);
  EXPECT_GT(w.engine.stats().host.resumed, 0);
  EXPECT_EQ(w.engine.stats().computed_prefill_tokens, before + 40);
}

TEST(Engine, APausedSequenceCanBeCancelledOrLost) {
  for (const bool fails : {false, true}) {
    SCOPED_TRACE(fails);
    World w = shortage(16);
    submit_two(w);
    run_until_paused(w);
    EXPECT_GT(w.engine.stats().host.used_blocks, 0);
    if (fails) {
      w.runner.fail_next_step();
    } else {
      w.engine.cancel(RequestId{2});
      w.engine.check_invariants();
      EXPECT_EQ(w.engine.stats().host.used_blocks, 0);
    }
    w.run();
    EXPECT_EQ(w.answer(2).finish, fails ? FinishReason::kError : FinishReason::kCancelled);
    w.expect_all_memory_back();
  }
}

TEST(Engine, WhoWouldYieldIsKnownBeforeAnybodyMust) {
  World w = shortage(16);
  submit_two(w);
  EXPECT_EQ(w.engine.next_to_yield(), std::nullopt);
  for (int i = 0; i < 1000 && !w.engine.next_to_yield(); ++i) w.step();
  EXPECT_EQ(w.engine.next_to_yield(), RequestId{2});
  EXPECT_EQ(w.engine.stats().host.paused_sequences, 0);
  w.engine.drop_for_room(RequestId{2});
  EXPECT_EQ(w.engine.next_to_yield(), std::nullopt);
  w.run();
  EXPECT_EQ(w.answer(1).tokens, w.runner.expected_output(prompt_of(20), 40));
  EXPECT_EQ(w.answer(2).finish, FinishReason::kNone) << "its end is another instance's business";
  EXPECT_EQ(w.engine.stats().windows.shortfall_move, 1);
  EXPECT_EQ(w.engine.stats().windows.shortfall_pause, 0);
  w.expect_all_memory_back();
}

TEST(Engine, TheLessImportantYields) {
  World w = shortage(16);
  teach_short_answers(w);
  w.submit(1, prompt_of(20), 40, /*priority=*/-1);
  w.submit(2, prompt_of(20, 100), 40, /*priority=*/3);
  std::int64_t held = 0;
  run_until_paused(w);
  for (const SequenceView& view : w.engine.stats().running) held += view.request == RequestId{2};
  EXPECT_EQ(held, 1);
  w.run();
  expect_right_answers(w);
}

TEST(Engine, EqualRunsAreEqual) {
  const auto trace = [] {
    World w({.num_blocks = 20, .end_one_in = 30});
    for (std::uint64_t id = 1; id <= 30; ++id) {
      w.submit(id, prompt_of(3 + id % 11, static_cast<Token>(id)), 20);
      w.step();
    }
    w.run();
    return std::pair(w.runner.steps(), w.engine.stats().windows.windows);
  };
  EXPECT_EQ(trace(), trace());
}

}  // namespace
}  // namespace sluice
