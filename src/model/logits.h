// Arithmetic over one row of logits: written so that compilers vectorise it, with
// equal results on every machine.
//
// A logit of -infinity is a token that is impossible; a NaN counts as one.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/ids.h"

namespace sluice {

struct Logit {
  float value = 0.0F;
  Token token = 0;
  // Best first; equal values by token, so that orders are repeatable.
  friend bool operator<(const Logit& a, const Logit& b) {
    return a.value != b.value ? a.value > b.value : a.token < b.token;
  }
};

// The first of the largest; -1: nothing is possible.
[[nodiscard]] Token argmax(std::span<const float> logits);

// The `n` best, best first; fewer where fewer are possible.
[[nodiscard]] std::vector<Logit> best_of(std::span<const float> logits, std::size_t n);

// Sum of exp((logit - max) * scale); `max` is the largest logit. Adds up in blocks
// of kExpBlock, whose sums go to `blocks` if that is not null.
inline constexpr std::size_t kExpBlock = 256;
[[nodiscard]] double exp_sum(std::span<const float> logits, float max, float scale,
                             std::vector<float>* blocks = nullptr);

// log of the sum of exp(logit): a logit minus this is a log probability.
// -infinity: nothing is possible.
[[nodiscard]] float log_sum_exp(std::span<const float> logits);

// exp(x) for x <= 0, relative error below 2e-6 for x > -20; 0 below -87.
[[nodiscard]] float fast_exp(float x);

}  // namespace sluice
