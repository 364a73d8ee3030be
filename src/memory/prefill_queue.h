// When the prompts of a running set will have been computed: in order, with
// what decode rows leave of each step's budget. Part of the window planner.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "memory/window_planner.h"

namespace sluice {

// One known token left to compute is a decode step; more are a prompt.
[[nodiscard]] inline bool in_prefill(const RunningSequence& sequence) {
  return sequence.prefill_left > 1;
}

class PrefillQueue final {
 public:
  PrefillQueue(const WindowOptions& options, std::span<const RunningSequence> running) {
    const auto decoding =
        static_cast<std::int64_t>(running.size()) - std::ranges::count_if(running, in_prefill);
    const std::int64_t budget = options.step_token_budget;
    // Decode never takes all: somebody would wait without end.
    rate_ = std::max<std::int64_t>({1, budget / 16, budget - decoding});
  }

  // Steps after which `sequence`, the next in order, begins to decode.
  [[nodiscard]] std::int64_t decodes_after(const RunningSequence& sequence) {
    if (!in_prefill(sequence)) return 0;
    tokens_ += sequence.prefill_left;
    return (tokens_ + rate_ - 1) / rate_;
  }

  [[nodiscard]] std::int64_t rate() const { return rate_; }      // tokens a step
  [[nodiscard]] std::int64_t tokens() const { return tokens_; }  // asked for so far

 private:
  std::int64_t rate_ = 1;
  std::int64_t tokens_ = 0;
};

}  // namespace sluice
