// What a client may ask about how tokens are drawn. Plain data, checked by the
// gateway (gateway/limits) before it gets here.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"

namespace sluice {

// A constraint on the text, as GBNF. A lazy grammar sleeps until one of its
// triggers appears in the output (tool calls after free text).
struct GrammarSpec {
  std::string gbnf;     // empty: no constraint
  std::string prefill;  // text of the prompt's end that the grammar begins with
  bool lazy = false;
  std::vector<std::string> trigger_words;     // texts in the output; the grammar begins with them
  std::vector<std::string> trigger_patterns;  // ECMAScript; the grammar begins with group 1,
                                              // or with the whole match
  std::vector<Token> trigger_tokens;
};

struct SamplingParams {
  float temperature = 1.0F;  // 0: greedy
  std::int32_t top_k = 0;    // <= 0: off
  float top_p = 1.0F;        // 1: off
  float min_p = 0.0F;        // 0: off
  float typical_p = 1.0F;    // 1: off
  float presence_penalty = 0.0F;
  float frequency_penalty = 0.0F;
  float repetition_penalty = 1.0F;                  // 1: off; over the last `repeat_last_n` tokens
  std::int32_t repeat_last_n = -1;                  // -1: the whole sequence
  std::vector<std::pair<Token, float>> logit_bias;  // added to the logit; -inf bans
  std::uint64_t seed = 0;
  std::int32_t min_tokens = 0;  // no end-of-generation token before that many
  bool ignore_eos = false;
  // Benchmarks: the generation ends after exactly so many tokens, neither earlier
  // nor later; 0: when the model ends it. The sampler alone acts on it.
  std::int32_t forced_length = 0;
  std::vector<Token> stop_tokens;                    // end the generation as the model's own do
  std::vector<Token> allowed_tokens;                 // nothing else is drawn; empty: any
  std::vector<std::vector<Token>> banned_sequences;  // never drawn, whole, in the output
  std::int32_t num_logprobs = -1;     // -1: none; 0: of the chosen token; n: and the n best
  std::vector<Token> logprob_tokens;  // listed in place of the n best; empty: the n best
  std::int32_t prompt_logprobs = -1;  // of the prompt's tokens, as num_logprobs
  GrammarSpec grammar;
};

}  // namespace sluice
