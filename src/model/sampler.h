// Draws tokens for one sequence.
#pragma once

#include <array>
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

struct SampledToken {
  Token token = 0;
  bool end_of_generation = false;  // the model says that it has finished
  float logprob = 0.0F;            // of the raw distribution; only if asked for
  std::vector<TokenLogprob> top;   // best first; only if asked for
};

// What a sampler cannot derive from its parameters and the tokens that it drew.
struct SamplerState {
  std::array<std::uint64_t, 4> random{};
  friend bool operator==(const SamplerState&, const SamplerState&) = default;
};

// One sequence's sampler: its penalties, grammar state and random stream. It
// draws the same tokens for the same seed and logits whatever else is in the
// batch. Owned by its Sequence; used by one thread at a time, by any thread.
class Sampler {
 public:
  virtual ~Sampler() = default;

  // Draws from `logits` (one row of the vocabulary; may be overwritten) and
  // accepts what it drew. Fails with kInternal where no token is possible.
  [[nodiscard]] virtual Result<SampledToken> sample(std::span<float> logits) = 0;

  // What another instance needs to go on in its place, beside parameters and
  // tokens. The defaults are those of a sampler that remembers nothing.
  [[nodiscard]] virtual SamplerState state() const { return {}; }
  // Goes on where an equal sampler stopped that had drawn `generated`; called
  // before the first sample(). kInvalidArgument: it cannot have drawn them.
  [[nodiscard]] virtual Status resume(std::span<const Token> /*generated*/,
                                      const SamplerState& /*state*/) {
    return {};
  }
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
