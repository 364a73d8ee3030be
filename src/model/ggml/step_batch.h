// A step's rows as a graph takes them, and what is drawn or scored from its logits.
//
// Rows of all sequences lie behind one another in the order given; rows with
// logits are gathered in that order. Belongs to a runner: lay_out() and take() by
// its loop, read() by its compute threads, all of them at once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/ggml/attention_plan.h"
#include "model/ggml/graph.h"
#include "model/model.h"
#include "model/model_runner.h"

namespace sluice {

// Where a step's inputs are written, in graphs that may have more rows than it.
struct StepInputs {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> positions;
  std::span<std::int32_t> output_rows;  // empty: all rows, or none
};

class StepBatch final {
 public:
  StepBatch(const RunnerOptions& options, std::int32_t vocabulary_size)
      : options_(options), vocabulary_size_(vocabulary_size) {}

  // CHECKs the caller's rows. What they point at is read until the step's end.
  [[nodiscard]] GraphShape lay_out(const StepInput& input, const KvView& kv);
  void write(const StepInput& input, const StepInputs& to) const;
  // Draws and scores: each thread takes the next call until none is left.
  void read(std::span<float> logits);
  // What the step gave. Without its duration.
  [[nodiscard]] StepOutput take();

  [[nodiscard]] std::span<const AttentionSequence> sequences() const { return sequences_; }

 private:
  // One row of logits: a token is drawn from it, or one is scored by it. With drafts:
  // the first of as many rows more, to be drawn from in their order.
  struct OutputCall {
    std::size_t row = 0;         // of the step's input
    std::size_t logits = 0;      // the row of logits
    Sampler* sampler = nullptr;  // null: scores
    std::size_t target = 0;      // which of the row's targets
    Token token = 0;
    std::int32_t num_top = 0;
    std::span<const Token> drafts;
  };

  const RunnerOptions options_;
  const std::int32_t vocabulary_size_;
  std::vector<AttentionSequence> sequences_;
  std::vector<OutputCall> output_calls_;
  std::atomic<std::size_t> next_output_{0};
  std::vector<Result<SampledToken>> sampled_;
  std::vector<std::vector<Result<SampledToken>>> after_drafts_;
  std::vector<std::vector<ScoredToken>> scored_;
};

}  // namespace sluice
