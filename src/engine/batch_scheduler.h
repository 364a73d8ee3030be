// Which tokens of which sequences the next step computes. Pure.
//
// Every decoding sequence gets its row, so that decode never starves; prefill
// chunks fill the rest of the token budget, oldest first. Beside decode rows a
// chunk is also bounded by time, or clients would see their streams stall whenever
// somebody sends a long prompt (chunked prefill, as in Sarathi-Serve): a step takes
// `even_step_ratio` times what its decode rows take alone where that computes what is
// left of all prompts within `even_steps`; where more is left it may take longer, up to
// `mixed_step_ratio` times that and `mixed_step_target`. The least chunk is computed
// whatever that takes.
//
// Guesses after a decode row (speculation) are computed where they are expected to bring
// more tokens a second than the step's decode rows have without them: the i-th guess of
// a sequence brings acceptance^i tokens, and costs what the step-time model says of a
// prefill token there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/step_time_model.h"

namespace sluice {

struct BatchOptions {
  std::int32_t max_step_tokens = 512;
  std::int32_t min_chunk_tokens = 32;  // of a prefill chunk beside decode rows
  // Prompt tokens whose logits a step computes: each costs a row of the vocabulary.
  std::int32_t max_scored_tokens = 32;
  // Guesses that a step computes; each costs a row of the vocabulary as well.
  std::int32_t max_draft_tokens = 64;
  Duration mixed_step_target = std::chrono::milliseconds(150);
  double mixed_step_ratio = 2;
  double even_step_ratio = 1.7;  // where it is below mixed_step_ratio
  std::int32_t even_steps = 8;
};

// A running sequence as the batch scheduler sees it, in the order of admission.
struct BatchCandidate {
  SequenceId id;
  std::int32_t computed = 0;         // tokens whose KV exists
  std::int32_t left_to_compute = 0;  // >= 1
  std::int32_t granted_tokens = 0;   // KV may be written for [0, granted_tokens)
  bool decoding = false;
  bool scored = false;      // the logits of its prompt's tokens are wanted
  std::int32_t drafts = 0;  // guesses of what comes after the tokens to compute
  double acceptance = 0;    // that one of these is right if those before it are; 1: for certain
};

struct BatchRow {
  std::size_t candidate = 0;    // index into the candidates
  std::int32_t num_tokens = 0;  // >= 1
  bool samples = false;         // reaches the last known token
  std::int32_t drafts = 0;      // guesses computed after them
};

struct BatchPlan {
  std::vector<BatchRow> rows;  // decode rows first
  StepShape shape;             // for the step-time model; a guess is as good as a prefill token
  std::int32_t draft_tokens = 0;
  [[nodiscard]] bool empty() const { return rows.empty(); }
};

class BatchScheduler final {
 public:
  explicit BatchScheduler(BatchOptions options) : options_(options) {}

  // Ensures: at most max_step_tokens tokens; no row goes beyond its grant; if
  // any candidate has a grant to write, the plan is not empty.
  [[nodiscard]] BatchPlan plan(std::span<const BatchCandidate> candidates,
                               const StepTimeModel& step_time) const;

 private:
  void add_drafts(std::span<const BatchCandidate> candidates, const StepTimeModel& step_time,
                  BatchPlan& plan) const;
  // Prefill tokens that this step may hold beside its decode rows, of a sequence
  // that has come to `position`; `left` tokens of all prompts are to be computed.
  [[nodiscard]] std::int32_t prefill_budget(const StepShape& decode, std::int32_t position,
                                            std::int64_t left,
                                            const StepTimeModel& step_time) const;

  const BatchOptions options_;
};

}  // namespace sluice
