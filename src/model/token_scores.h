// Log probabilities of tokens that are known: what a prompt's words were worth.
#pragma once

#include <span>

#include "model/sampler.h"

namespace sluice {

// `logits` is the raw row that predicts `token`; lists the `num_top` best beside it.
[[nodiscard]] ScoredToken score_token(std::span<const float> logits, Token token,
                                      std::int32_t num_top);

}  // namespace sluice
