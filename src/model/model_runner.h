// Runs one step of a model: a forward pass over a mixed batch of prefill and
// decode rows, then sampling.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/kv_layout.h"
#include "base/result.h"
#include "base/time.h"
#include "model/sampler.h"

namespace sluice {

// The part of one sequence that a step computes. KV of tokens [0, position) is
// in `blocks`; the step writes that of `tokens` and then that of `drafts` after it.
struct StepRows {
  std::span<const Token> tokens;  // not empty
  std::int32_t position = 0;
  std::span<const BlockId> blocks;  // covers position + num_rows() tokens
  Sampler* sampler = nullptr;       // draws after the last token; null: no logits wanted
  // Tokens to be scored: targets[i] by what follows tokens[i]. Not more of them than
  // tokens, nor than tokens before the last one where that is drawn after.
  std::span<const Token> targets;
  std::int32_t num_top = 0;  // alternatives listed with each of them
  // Guesses of what will be drawn after the tokens; only with a sampler.
  std::span<const Token> drafts;

  [[nodiscard]] std::int32_t num_rows() const {
    return static_cast<std::int32_t>(tokens.size() + drafts.size());
  }
};

// Copies the first `num_tokens` tokens of a block, before the pass (a prefix
// that matched only part of a shared block).
struct BlockCopy {
  BlockId from;
  BlockId to;
  std::int32_t num_tokens = 0;
};

// Spans stay valid during run() only.
struct StepInput {
  std::vector<BlockCopy> copies;
  std::vector<StepRows> rows;
};

struct StepOutput {
  // One for each of StepInput::rows, in order; without a sampler it is empty
  // (token -1). A sampler's failure ends its own sequence only.
  std::vector<Result<SampledToken>> sampled;
  // One for each of StepInput::rows, in order: what its sampler drew after drafts 0, 1,
  // ...: after each as long as it was what had been drawn. Or empty if no row has any.
  std::vector<std::vector<Result<SampledToken>>> after_drafts;
  // One for each of StepInput::rows, in order: its targets; or empty if no row has any.
  std::vector<std::vector<ScoredToken>> scored;
  Duration duration{};  // of the whole step, as the device spent it
};

// Draws after the drafts of one of StepInput::rows, as StepOutput says. `first` was drawn
// before them; `draw` is given after how many of them it is to draw.
template <class Draw>
void draw_along(std::span<const Token> drafts, const Result<SampledToken>& first,
                std::vector<Result<SampledToken>>& after_drafts, Draw&& draw) {
  const Result<SampledToken>* last = &first;
  for (std::size_t i = 0; i < drafts.size(); ++i) {
    if (!*last || (*last)->end_of_generation || (*last)->token != drafts[i]) return;
    last = &after_drafts.emplace_back(draw(i + 1));
  }
}

// One device's model. Owned and used by the engine's loop.
class ModelRunner {
 public:
  virtual ~ModelRunner() = default;

  // Tells where KV lives; called once, before the first run().
  virtual void bind(const KvView& kv) = 0;

  // An error means that the device failed: every sequence of the step is lost.
  [[nodiscard]] virtual Result<StepOutput> run(const StepInput& input) = 0;
};

}  // namespace sluice
