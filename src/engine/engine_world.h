// One engine around a fake model, for tests: a clock that the model moves, host
// memory, and a sink that checks what every client relies on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <numeric>
#include <vector>

#include "engine/engine.h"
#include "model/fake_model_runner.h"

namespace sluice {

// Keeps what left the engine, and checks on the way what every client relies on:
// indices without a gap, one finishing event, nothing after it.
class Recorder final : public TokenSink {
 public:
  struct Answer {
    std::vector<Token> tokens;
    FinishReason finish = FinishReason::kNone;
    std::int32_t cached_tokens = 0;
    std::vector<ScoredToken> scores;
    std::vector<std::int32_t> progress;
    Error error;
  };
  void on_tokens(std::vector<TokenEvent>&& events) override {
    for (TokenEvent& event : events) {
      Answer& answer = answers[event.request];
      if (event.is_progress) {
        EXPECT_TRUE(answer.tokens.empty() && !event.has_token);
        answer.progress.push_back(event.computed_tokens);
        continue;
      }
      EXPECT_EQ(answer.finish, FinishReason::kNone) << "an event after the last one";
      EXPECT_EQ(event.index, static_cast<std::int32_t>(answer.tokens.size()));
      if (event.has_token) answer.tokens.push_back(event.token.token);
      answer.cached_tokens += event.cached_tokens;
      for (ScoredToken& score : event.prompt_scores) answer.scores.push_back(std::move(score));
      answer.finish = event.finish;
      answer.error = event.error;
    }
  }
  std::map<RequestId, Answer> answers;
};

// Host memory for the fake runner's blocks; a copy moves the clock.
class FakeHostKv final : public HostKv {
 public:
  FakeHostKv(FakeModelRunner& runner, ManualClock& clock, std::int32_t num_blocks, Duration copy)
      : runner_(runner),
        clock_(clock),
        copy_(copy),
        blocks_(static_cast<std::size_t>(num_blocks)) {}
  [[nodiscard]] std::int32_t num_blocks() const override {
    return static_cast<std::int32_t>(blocks_.size());
  }
  void save(std::span<const BlockId> device, std::span<const BlockId> host) override {
    for (std::size_t i = 0; i < device.size(); ++i) {
      const std::span<Token> from = runner_.block(device[i]);
      at(host[i]).assign(from.begin(), from.end());
    }
    clock_.advance(copy_ * device.size());
  }
  void restore(std::span<const BlockId> host, std::span<const BlockId> device) override {
    for (std::size_t i = 0; i < device.size(); ++i) {
      std::ranges::copy(at(host[i]), runner_.block(device[i]).begin());
      at(host[i]).clear();
    }
    clock_.advance(copy_ * device.size());
  }

 private:
  std::vector<Token>& at(BlockId id) { return blocks_.at(static_cast<std::size_t>(id.value)); }
  FakeModelRunner& runner_;
  ManualClock& clock_;
  const Duration copy_;
  std::vector<std::vector<Token>> blocks_;
};

struct EngineWorld {
  FakeModelOptions model;
  ManualClock clock;
  Recorder out;
  FakeModelRunner runner;
  FakeSamplerFactory samplers;
  FakeHostKv host;
  Engine engine;

  explicit EngineWorld(FakeModelOptions m = {}, EngineOptions o = {}, std::int32_t host_blocks = 0)
      : model(m),
        runner(m, &clock),
        samplers(m),
        host(runner, clock, host_blocks, std::chrono::microseconds(10)),
        engine(fit(o, m), runner, samplers, clock, out,
               {.host = host_blocks > 0 ? &host : nullptr}) {}

  static EngineOptions fit(EngineOptions o, const FakeModelOptions& m) {
    o.kv.num_blocks = m.num_blocks;
    o.kv.window.block_tokens = m.block_tokens;
    o.kv.window.step_token_budget = o.batch.max_step_tokens;
    return o;
  }

  void submit(std::uint64_t id, std::vector<Token> prompt, std::int32_t max_tokens,
              std::int32_t priority = 0, std::int32_t prompt_logprobs = -1) {
    auto request = std::make_unique<Request>();
    request->id = RequestId{id};
    request->prompt = std::move(prompt);
    request->max_tokens = max_tokens;
    request->priority = priority;
    request->sampling.prompt_logprobs = prompt_logprobs;
    request->arrival = clock.now();
    engine.submit(std::move(request));
  }
  void step() {
    engine.step();
    engine.check_invariants();
  }
  void run(int limit = 100000) {
    while (!engine.idle() && limit-- > 0) step();
    EXPECT_TRUE(engine.idle()) << "the engine does not come to an end";
  }
  Recorder::Answer& answer(std::uint64_t id) { return out.answers[RequestId{id}]; }
  // Nothing runs: all memory is free or a prefix that nobody uses.
  void expect_all_memory_back() {
    const KvStats kv = engine.stats().kv;
    EXPECT_EQ(kv.granted_blocks, 0);
    EXPECT_EQ(kv.free_blocks + kv.cached_blocks, kv.total_blocks);
    EXPECT_EQ(engine.stats().host.used_blocks, 0);
  }
};

inline std::vector<Token> prompt_of(std::size_t n, Token first = 1) {
  std::vector<Token> prompt(n);
  std::iota(prompt.begin(), prompt.end(), first);
  return prompt;
}

}  // namespace sluice
