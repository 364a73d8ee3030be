#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <numeric>

#include "engine/engine.h"
#include "model/fake_model_runner.h"

namespace sluice {
namespace {

struct Events final : TokenSink {
  void on_tokens(std::vector<TokenEvent>&& events) override {
    for (TokenEvent& e : events) {
      EXPECT_EQ(finish[e.request], FinishReason::kNone);
      EXPECT_EQ(e.index, static_cast<std::int32_t>(tokens[e.request].size()));
      if (e.has_token) tokens[e.request].push_back(e.token.token);
      finish[e.request] = e.finish;
    }
  }
  std::map<RequestId, std::vector<Token>> tokens;
  std::map<RequestId, FinishReason> finish;
};

// Two engines side by side in one arena.
struct Pair {
  static constexpr std::int32_t kBlocks = 20;
  FakeModelOptions model;
  std::int32_t draft_tokens;
  ManualClock clock;
  Events out;
  FakeSamplerFactory samplers{model};
  std::vector<Token> memory = std::vector<Token>(2 * kBlocks * 4, -1);
  FakeModelRunner runner_a{model, &clock};
  FakeModelRunner runner_b{model, &clock};
  Engine a{options(0), runner_a, samplers, clock, out};
  Engine b{options(kBlocks), runner_b, samplers, clock, out};

  explicit Pair(std::int32_t vocabulary = 1000, std::int32_t drafts = 0)
      : model{.num_blocks = kBlocks, .block_tokens = 4, .vocabulary = vocabulary},
        draft_tokens(drafts) {
    const KvView view{reinterpret_cast<std::byte*>(memory.data()),
                      FakeModelRunner::fake_kv_layout(4), 2 * kBlocks};
    runner_a.bind(view);
    runner_b.bind(view);
  }
  [[nodiscard]] EngineOptions options(std::int32_t first) const {
    EngineOptions o;
    o.max_running = 3;
    o.draft_tokens = draft_tokens;
    o.kv.num_blocks = kBlocks;
    o.kv.first_block = first;
    o.kv.window.block_tokens = 4;
    return o;
  }
  std::unique_ptr<Request> request(std::uint64_t id, std::size_t prompt, std::int32_t max_tokens) {
    auto r = std::make_unique<Request>();
    r->id = RequestId{id};
    r->prompt.resize(prompt);
    std::iota(r->prompt.begin(), r->prompt.end(), static_cast<Token>(10 * id));
    r->max_tokens = max_tokens;
    return r;
  }
  // From a to b, by hand; false: b has no room.
  bool hand_over(RequestId id, std::int32_t spare = 2) {
    const Sequence& s = *a.find(id);
    const std::vector<Token> generated(s.tokens.begin() + s.prompt_tokens, s.tokens.end());
    const auto granted = b.reserve({.request = std::make_unique<Request>(*s.request),
                                    .generated = generated,
                                    .room_tokens = s.computed + spare});
    if (!granted) return false;
    EXPECT_TRUE(a.rest(id));
    const auto from = a.table(id);
    for (std::int32_t i = granted->held_tokens / 4; i * 4 < s.computed; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const BlockId to = granted->blocks[at - static_cast<std::size_t>(granted->held_tokens / 4)];
      std::memcpy(&memory[static_cast<std::size_t>(to.value) * 4],
                  &memory[static_cast<std::size_t>(from[at].value) * 4], 4 * sizeof(Token));
    }
    EXPECT_TRUE(b.start(id, {.generated = generated,
                             .kv_tokens = s.computed,
                             .cached_tokens = s.cached_tokens,
                             .announced = s.announced}));
    a.drop(id);
    return true;
  }
  void finish(Engine& engine) {
    for (int i = 0; i < 10000 && !engine.idle(); ++i) {
      engine.step();
      engine.check_invariants();
    }
    EXPECT_TRUE(engine.idle());
    EXPECT_EQ(engine.stats().kv.granted_blocks, 0);
  }
  std::vector<Token> expected(std::uint64_t id, std::size_t prompt, std::int32_t max_tokens) {
    return runner_a.expected_output(request(id, prompt, max_tokens)->prompt, max_tokens);
  }
};

TEST(EngineHandoff, ASequenceGoesOnWhereverItIsCut) {
  for (int steps = 1; steps <= 12; ++steps) {
    Pair w;
    w.a.submit(w.request(1, 9, 14));
    for (int i = 0; i < steps; ++i) w.a.step();
    ASSERT_TRUE(w.hand_over(RequestId{1})) << steps;
    w.a.check_invariants();
    w.finish(w.a);
    w.finish(w.b);
    EXPECT_EQ(w.out.tokens[RequestId{1}], w.expected(1, 9, 14));
    EXPECT_EQ(w.out.finish[RequestId{1}], FinishReason::kLength);
  }
}

// Neither what was guessed nor how often guesses were right goes along.
TEST(EngineHandoff, ASequenceWithGuessesGoesOnWhereverItIsCut) {
  for (const std::int32_t vocabulary : {1, 2}) {
    for (int steps = 1; steps <= 14; ++steps) {
      Pair w(vocabulary, 4);
      w.a.submit(w.request(1, 9, 50));
      for (int i = 0; i < steps && !w.a.idle(); ++i) w.a.step();
      if (w.a.idle()) break;
      ASSERT_TRUE(w.hand_over(RequestId{1})) << steps;
      w.finish(w.a);
      w.finish(w.b);
      EXPECT_EQ(w.out.tokens[RequestId{1}], w.expected(1, 9, 50));
      EXPECT_GT(w.a.stats().speculation.drafts + w.b.stats().speculation.drafts, 0);
    }
  }
}

TEST(EngineHandoff, MayLeaveFromTheLastChunkOn) {
  Pair w;
  w.a.submit(w.request(1, 9, 14));
  w.a.submit(w.request(2, 9, 1));  // its only token comes with the prompt
  EXPECT_TRUE(w.a.may_leave().empty());
  w.a.step();
  EXPECT_EQ(w.a.may_leave(), std::vector<RequestId>{RequestId{1}});
}

TEST(EngineHandoff, WhatRestsTakesNoStepsAndWakes) {
  Pair w;
  w.a.submit(w.request(1, 9, 14));
  w.a.step();
  w.a.step();
  ASSERT_TRUE(w.a.rest(RequestId{1}));
  EXPECT_FALSE(w.a.rest(RequestId{1}));
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(w.a.step());
  w.a.cancel(RequestId{1});  // who handles the handoff decides
  EXPECT_FALSE(w.a.idle());
  w.a.wake(RequestId{1});
  w.finish(w.a);
  EXPECT_EQ(w.out.tokens[RequestId{1}], w.expected(1, 9, 14));
}

TEST(EngineHandoff, RefusalsSayWhetherAndWhen) {
  Pair w;
  const auto ask = [&](std::size_t prompt, std::int32_t max_tokens) {
    return w.b.reserve({.request = w.request(9, prompt, max_tokens),
                        .generated = {1},
                        .room_tokens = static_cast<std::int32_t>(prompt) + 2});
  };
  const auto never = ask(100, 5);  // more than all its blocks
  ASSERT_FALSE(never);
  EXPECT_TRUE(never.error().never);
  EXPECT_EQ(never.error().after, Duration::zero());  // nobody is told to come back for that
  EXPECT_TRUE(ask(10, 1).error().never);             // nothing left to generate
  auto bad = w.request(9, 10, 5);
  bad->sampling.grammar.gbnf = "bad";
  EXPECT_TRUE(w.b.reserve({std::move(bad), {1}, 12}).error().never);
  w.b.submit(w.request(1, 60, 10));
  w.b.step();
  const auto later = ask(30, 20);
  ASSERT_FALSE(later);
  EXPECT_FALSE(later.error().never);
  EXPECT_GT(later.error().after, Duration::zero());
  w.finish(w.b);
  EXPECT_TRUE(ask(30, 20));
  w.b.drop(RequestId{9});
  w.finish(w.b);
}

TEST(EngineHandoff, OnlyWhatFitsTheReservationStarts) {
  Pair w;
  ASSERT_TRUE(w.b.reserve({w.request(1, 10, 20), {}, 12}));
  const std::vector<Token> four = {1, 2, 3, 4};
  const RequestId id{1};
  EXPECT_EQ(w.b.start(RequestId{7}, {}).error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(w.b.start(id, {.generated = four, .kv_tokens = 13}));  // beyond the room
  EXPECT_FALSE(w.b.start(id, {.generated = four, .kv_tokens = 9}));   // not all of it
  EXPECT_FALSE(w.b.start(id, {.generated = {}, .kv_tokens = 9}));     // nothing to go on from
  EXPECT_FALSE(w.b.step());                                           // it only holds memory
  w.b.drop(id);
  w.finish(w.b);
}

// Where blocks run out, what rests may lose its KV, and is computed anew if it wakes.
TEST(EngineHandoff, WhatRestsDoesNotStopWhatRuns) {
  Pair w;
  for (std::uint64_t id = 1; id <= 3; ++id) w.a.submit(w.request(id, 8, 40));
  int resting = 0;
  for (int i = 0; i < 60; ++i) {
    w.a.step();
    w.a.check_invariants();
    for (std::uint64_t id = 2; id <= 3; ++id) {
      const Sequence* s = w.a.find(RequestId{id});
      if (s != nullptr && s->decoding() && w.a.rest(RequestId{id})) ++resting;
    }
  }
  EXPECT_GE(resting, 1);
  EXPECT_EQ(w.out.tokens[RequestId{1}], w.expected(1, 8, 40));
  for (std::uint64_t id = 2; id <= 3; ++id) {
    if (!w.out.tokens[RequestId{id}].empty()) w.a.wake(RequestId{id});
  }
  w.finish(w.a);
  for (std::uint64_t id = 1; id <= 3; ++id) {
    EXPECT_EQ(w.out.tokens[RequestId{id}], w.expected(id, 8, 40));
  }
}

}  // namespace
}  // namespace sluice
