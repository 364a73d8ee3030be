// Draws tokens for one sequence.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "model/sampling_params.h"

namespace sluice {

struct TokenLogprob {
  Token token = 0;
  float logprob = 0.0F;
};

// What the model thought of a token that it was given.
struct ScoredToken {
  Token token = 0;
  float logprob = 0.0F;           // of the raw distribution
  std::int32_t rank = 1;          // 1: none was likelier
  std::vector<TokenLogprob> top;  // best first
};

struct SampledToken {
  Token token = 0;
  bool end_of_generation = false;  // the model says that it has finished
  float logprob = 0.0F;            // of the raw distribution; only if asked for
  std::vector<TokenLogprob> top;   // best first; only if asked for
};

// One sequence's sampler: its penalties, grammar state and randomness. It draws
// the same tokens for the same seed and logits whatever else is in the batch, and
// the n-th draw depends on the seed, n and the tokens before it alone: a sequence
// that lost its instance goes on elsewhere as if nothing had happened. Owned by
// its Sequence; used by one thread at a time, by any thread.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Takes these tokens as drawn already; before the first sample().
  // kInvalidArgument: it could not have drawn them.
  [[nodiscard]] virtual Status resume(std::span<const Token> output) = 0;

  // Draws from `logits` (one row of the vocabulary; may be overwritten) and
  // accepts what it drew. Fails with kInternal where no token is possible.
  [[nodiscard]] virtual Result<SampledToken> sample(std::span<float> logits) = 0;
};

class SamplerFactory {
 public:
  virtual ~SamplerFactory() = default;

  // `prompt` feeds the penalties. kInvalidArgument: the grammar does not parse,
  // or a token is not in the vocabulary. Any thread may call it.
  [[nodiscard]] virtual Result<std::unique_ptr<Sampler>> make(
      const SamplingParams& params, std::span<const Token> prompt) const = 0;
};

}  // namespace sluice
