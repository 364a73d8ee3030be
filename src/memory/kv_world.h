// A small engine for tests of KvManager: admits, steps, releases and renews as
// it is told, computes tokens like a device that reads and writes blocks, and
// checks after each operation what the manager guarantees.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "memory/kv_manager.h"

namespace sluice {

class KvWorld {
 public:
  struct Sequence {
    RunningSequence view;
    std::vector<Token> tokens;
    std::optional<PrefixCopy> copy;
  };

  explicit KvWorld(const KvOptions& options)
      : options_(options),
        manager(options),
        memory_(static_cast<std::size_t>(options.num_blocks * options.window.block_tokens), -1) {}

  // The forecast says that all ends at once: it refuses nothing.
  void forecast_nothing() {
    for (int i = 0; i < 5000; ++i) forecast.observe(1, false);
  }

  // Renews if the window is over; what cannot be granted a step yields.
  void renew_if_over() {
    while (manager.window_over(now)) open(false);
  }
  void open(bool early) {
    const bool held_a_grant = !manager.window_over(now);
    while (true) {
      const Window& window = manager.open_window(now, views(), step_time, forecast, early);
      check();
      if (window.plan.deferred.empty()) break;
      // An early renewal is for an arrival: nobody pays for it.
      ASSERT_FALSE(early && held_a_grant);
      const SequenceId victim = window.plan.deferred.front();
      ASSERT_GT(running.size(), 1u) << "a sequence alone must fit";
      ++restarts;
      remove(victim);
    }
  }

  // False: refused, and nothing has changed.
  bool admit(std::vector<Token> tokens, std::int32_t decode_cap, std::int32_t priority = 0) {
    const auto before = snapshot();
    const KvStats stats = manager.stats();
    const SequenceId id(next_id_++);
    const std::int32_t known = manager.cached_prefix(tokens);
    const auto admission = manager.admit({.id = id,
                                          .tokens = tokens,
                                          .decode_cap = decode_cap,
                                          .priority = priority,
                                          .true_length = HiddenLength(decode_cap)},
                                         now, views(), step_time, forecast);
    EXPECT_EQ(snapshot(), before) << "an admission touched what runs";
    if (!admission) {
      last_refusal = admission.error();
      EXPECT_EQ(manager.stats().free_blocks, stats.free_blocks);
      EXPECT_EQ(manager.stats().cached_blocks, stats.cached_blocks);
      check();
      return false;
    }
    EXPECT_LT(admission->cached_tokens, static_cast<std::int32_t>(tokens.size()));
    EXPECT_LE(admission->cached_tokens, known);
    Sequence sequence;
    sequence.view = {
        .id = id,
        .held_tokens = admission->cached_tokens,
        .prefill_left = static_cast<std::int32_t>(tokens.size()) - admission->cached_tokens,
        .decode_cap = decode_cap,
        .priority = priority,
        .true_length = HiddenLength(decode_cap)};
    sequence.tokens = std::move(tokens);
    sequence.copy = admission->copy;
    running.push_back(std::move(sequence));
    check();
    return true;
  }

  // One step of the batch: decode rows, then prompts under the budget in an
  // order that `rotate` turns. `next` gives the next token of a sequence.
  template <class NextToken>
  void step(std::size_t rotate, NextToken&& next) {
    step(rotate, next, [](const Sequence&) { return 0; });
  }
  // `ahead` says how many guesses a decode row has after it, all of which are written;
  // `next` may or may not give the same.
  template <class NextToken, class Ahead>
  void step(std::size_t rotate, NextToken&& next, Ahead&& ahead) {
    ASSERT_FALSE(manager.window_over(now));
    std::int32_t budget = options_.window.step_token_budget;
    manager.use_step();
    for (const bool decode : {true, false}) {
      for (std::size_t i = 0; i < running.size(); ++i) {
        Sequence& s = running[(i + rotate) % running.size()];
        if ((s.view.prefill_left <= 1) != decode) continue;
        const std::int32_t tokens = std::min(budget, s.view.prefill_left);
        if (tokens == 0) continue;
        budget -= tokens;
        compute(s, tokens);
        if (s.view.prefill_left > 0) continue;
        take(s, next(s));
        if (decode) go_ahead(s, ahead(s), next);
      }
    }
    now += Duration(1'000'000);
    check();
  }

  // Those that may not generate more end.
  void remove_capped() {
    std::vector<SequenceId> ended;
    for (const Sequence& s : running) {
      if (s.view.decode_cap == 0) ended.push_back(s.view.id);
    }
    for (const SequenceId id : ended) remove(id);
  }

  void remove(SequenceId id) {
    const KvStats before = manager.stats();
    const auto it = std::find_if(running.begin(), running.end(),
                                 [id](const Sequence& s) { return s.view.id == id; });
    ASSERT_NE(it, running.end());
    running.erase(it);
    manager.release(id);
    const KvStats after = manager.stats();
    EXPECT_GE(after.free_blocks + after.cached_blocks, before.free_blocks + before.cached_blocks);
    check();
  }

  std::vector<RunningSequence> views() const {
    std::vector<RunningSequence> views;
    for (const Sequence& s : running) {
      views.push_back(s.view);
      views.back().held_blocks = static_cast<std::int32_t>(manager.table(s.view.id).size());
    }
    return views;
  }

  void check() const {
    manager.check_invariants();
    const KvStats stats = manager.stats();
    ASSERT_EQ(stats.granted_blocks + stats.cached_blocks + stats.free_blocks, stats.total_blocks);
    ASSERT_LE(stats.written_blocks, stats.granted_blocks);
    if (manager.window().number == 0 || manager.window().steps_left <= 0) return;
    const WindowPlanner planner(window_options_for(options_.policy, options_.window));
    const std::vector<SequenceId>& deferred = manager.window().plan.deferred;
    for (const Sequence& s : running) {
      if (s.view.decode_cap == 0) continue;  // has ended, is about to be released
      if (std::ranges::find(deferred, s.view.id) != deferred.end()) continue;
      // All that it could write until the window's end has its place.
      ASSERT_GE(manager.granted_tokens(s.view.id),
                s.view.held_tokens + planner.writable_tokens(s.view, manager.window().steps_left));
    }
  }

  const KvOptions options_;
  KvManager manager;
  StepTimeModel step_time{StepTimeCoefficients{.base = 1e-3}};
  LengthForecast forecast;
  TimePoint now{};
  std::vector<Sequence> running;
  std::optional<Refusal> last_refusal;
  std::int64_t restarts = 0;

 private:
  static void take(Sequence& s, Token token) {
    s.view.generated += 1;
    s.view.decode_cap -= 1;
    s.view.prefill_left = 1;
    s.tokens.push_back(token);
  }

  // Speculation: guesses are written after the last token, and what is drawn stays.
  template <class NextToken>
  void go_ahead(Sequence& s, std::int32_t guesses, NextToken&& next) {
    const auto table = manager.table(s.view.id);
    const std::int32_t granted = manager.granted_tokens(s.view.id);
    guesses = std::min({guesses, granted - s.view.held_tokens, s.view.decode_cap});
    const std::int32_t first = s.view.held_tokens;
    for (std::int32_t i = 0; i < guesses; ++i) memory_[place(table, first + i)] = kGuess;
    for (std::int32_t i = 0; i < guesses && s.tokens.back() == kGuess; ++i) {
      compute(s, 1);
      take(s, next(s));
    }
    const std::int32_t room = granted - s.view.held_tokens;
    if (room < s.view.decode_cap) manager.limit_steps(room);
  }

  static constexpr Token kGuess = 1;
  using Tables = std::map<SequenceId, std::vector<BlockId>>;
  Tables snapshot() const {
    Tables tables;
    for (const Sequence& s : running) {
      const auto table = manager.table(s.view.id);
      tables[s.view.id].assign(table.begin(), table.end());
    }
    return tables;
  }

  std::size_t place(std::span<const BlockId> table, std::int32_t token) const {
    const std::int32_t size = options_.window.block_tokens;
    return static_cast<std::size_t>(table[static_cast<std::size_t>(token / size)].value * size +
                                    token % size);
  }

  // Attention reads all tokens before: each must be where the table says.
  void compute(Sequence& s, std::int32_t tokens) {
    const auto table = manager.table(s.view.id);
    if (s.copy) {
      const std::int32_t size = options_.window.block_tokens;
      for (std::int32_t i = 0; i < s.copy->num_tokens; ++i) {
        memory_[static_cast<std::size_t>(s.copy->to.value * size + i)] =
            memory_[static_cast<std::size_t>(s.copy->from.value * size + i)];
      }
      s.copy.reset();
    }
    ASSERT_LE(s.view.held_tokens + tokens, manager.granted_tokens(s.view.id));
    for (std::int32_t i = 0; i < s.view.held_tokens; ++i) {
      ASSERT_EQ(memory_[place(table, i)], s.tokens[static_cast<std::size_t>(i)]);
    }
    for (std::int32_t i = 0; i < tokens; ++i) {
      memory_[place(table, s.view.held_tokens + i)] =
          s.tokens[static_cast<std::size_t>(s.view.held_tokens + i)];
    }
    s.view.held_tokens += tokens;
    s.view.prefill_left -= tokens;
    manager.written(s.view.id,
                    std::span(s.tokens).first(static_cast<std::size_t>(s.view.held_tokens)));
  }

  std::vector<Token> memory_;  // what each place of the arena holds
  std::uint64_t next_id_ = 1;
};

}  // namespace sluice
