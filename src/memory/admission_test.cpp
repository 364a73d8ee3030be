// What admission by forecast is for: a full pool without restarts. A device that
// makes a token a step, real output lengths that only the end of a sequence
// tells, and a queue that is never empty.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "memory/kv_manager.h"
#include "memory/sharegpt_lengths.h"

namespace sluice {
namespace {

struct Outcome {
  std::int64_t finished = 0;
  std::int64_t restarts = 0;
  std::int64_t early_restarts = 0;  // of these, in the warm-up
  double written_share = 0;         // of the pool, mean over the steps after the warm-up
  double unused_share = 0;          // granted but not written
};

class Backlog {
 public:
  Backlog(std::int32_t blocks, std::uint64_t seed)
      : rng_(seed),
        manager_(
            {.num_blocks = blocks, .prefix_cache = false, .window = {.step_token_budget = 2048}}) {}

  Outcome run(std::int64_t requests) {
    std::int64_t steps = 0;
    warm_up_ = requests / 2;
    while (outcome_.finished < requests) {
      if (manager_.window_over(now_)) renew();
      while (running_.size() < 1000 && admit()) continue;
      step();
      if (outcome_.finished < warm_up_) continue;  // warm-up: the forecast learns
      const KvStats stats = manager_.stats();
      ++steps;
      outcome_.written_share += static_cast<double>(stats.written_blocks) / stats.total_blocks;
      outcome_.unused_share +=
          static_cast<double>(stats.granted_blocks - stats.written_blocks) / stats.total_blocks;
    }
    outcome_.written_share /= static_cast<double>(steps);
    outcome_.unused_share /= static_cast<double>(steps);
    return outcome_;
  }

 private:
  static constexpr std::int32_t kMostTokens = 2048;
  struct Sequence {
    RunningSequence view;
    std::int32_t prompt = 0;
    std::int32_t length = 0;  // hidden: neither planner nor forecast see it before the end
  };

  Sequence draw() {
    Sequence s;
    s.prompt = static_cast<std::int32_t>(20 + rng_.below(400));
    s.length = kShareGptOutputLengths[rng_.below(kShareGptOutputLengths.size())];
    return s;
  }

  bool admit() {
    if (waiting_.empty()) waiting_.push_back(draw());
    Sequence s = waiting_.back();
    const auto known = static_cast<std::size_t>(s.prompt + s.view.generated);
    const SequenceId id(next_id_++);
    const auto admission = manager_.admit({.id = id,
                                           .tokens = std::span(tokens_).first(known),
                                           .generated = s.view.generated,
                                           .decode_cap = kMostTokens - s.view.generated},
                                          now_, views(), step_time_, forecast_);
    if (!admission) return false;
    s.view = {.id = id,
              .prefill_left = static_cast<std::int32_t>(known),
              .generated = s.view.generated,
              .decode_cap = kMostTokens - s.view.generated};
    running_.push_back(s);
    waiting_.pop_back();
    return true;
  }

  void renew() {
    std::vector<RunningLength> ages;
    for (const Sequence& s : running_) ages.push_back({.generated = s.view.generated});
    forecast_.set_running(ages);
    while (true) {
      const Window& window = manager_.open_window(now_, views(), step_time_, forecast_);
      if (window.plan.deferred.empty()) return;
      const SequenceId victim = window.plan.deferred.front();
      const auto it =
          std::ranges::find_if(running_, [&](const Sequence& s) { return s.view.id == victim; });
      manager_.release(victim);
      waiting_.push_back(*it);
      running_.erase(it);
      outcome_.restarts += 1;
      if (outcome_.finished < warm_up_) outcome_.early_restarts += 1;
    }
  }

  void step() {
    manager_.use_step();
    now_ += std::chrono::milliseconds(20);
    std::int32_t budget = 2048;
    for (Sequence& s : running_) {
      const std::int32_t tokens = std::min(s.view.prefill_left, budget);
      budget -= tokens;
      s.view.held_tokens += tokens;
      s.view.prefill_left -= tokens;
      manager_.written(s.view.id,
                       std::span(tokens_).first(static_cast<std::size_t>(s.view.held_tokens)));
      if (s.view.prefill_left > 0) continue;
      s.view.prefill_left = 1;
      s.view.generated += 1;
      s.view.decode_cap -= 1;
    }
    std::erase_if(running_, [this](const Sequence& s) {
      if (s.view.generated < s.length) return false;
      forecast_.observe(s.view.generated, false);
      manager_.release(s.view.id);
      ++outcome_.finished;
      return true;
    });
  }

  std::vector<RunningSequence> views() const {
    std::vector<RunningSequence> views;
    views.reserve(running_.size());
    for (const Sequence& s : running_) views.push_back(s.view);
    return views;
  }

  Rng rng_;
  KvManager manager_;
  StepTimeModel step_time_{StepTimeCoefficients{.base = 0.02, .per_prefill_token = 40e-6}};
  LengthForecast forecast_;
  TimePoint now_{};
  std::vector<Token> tokens_ = std::vector<Token>(8192, 1);
  std::vector<Sequence> running_;
  std::vector<Sequence> waiting_;  // the next one last; those restarted first
  std::int64_t warm_up_ = 0;
  std::uint64_t next_id_ = 1;
  Outcome outcome_;
};

// Warm-up: all start together and the forecast has seen nothing.
TEST(AdmissionByForecast, FillsThePoolWithFewRestarts) {
  struct Case {
    const char* name;
    std::int32_t blocks;
    std::int64_t requests;
    double restarts;  // per 1,000 requests after the warm-up, at most
    double written;   // share of the pool after the warm-up, at least
  };
  for (const Case& c : {Case{"120,000 tokens", 7500, 3000, 20, 0.95},
                        Case{"20,000 tokens", 1250, 1500, 100, 0.9}}) {
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(c.name);
      const Outcome outcome = Backlog(c.blocks, seed).run(c.requests);
      const double half = static_cast<double>(c.requests) / 2;
      const auto late = static_cast<double>(outcome.restarts - outcome.early_restarts);
      EXPECT_LE(1000 * late / half, c.restarts);
      EXPECT_LE(1000 * static_cast<double>(outcome.early_restarts) / half, 100);
      EXPECT_GE(outcome.written_share, c.written);
      EXPECT_LE(outcome.unused_share, 0.03);
    }
  }
}

}  // namespace
}  // namespace sluice
