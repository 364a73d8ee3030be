#include "model/token_scores.h"

#include <algorithm>
#include <cstddef>

#include "model/logits.h"

namespace sluice {

ScoredToken score_token(std::span<const float> logits, Token token, std::int32_t num_top) {
  const float total = log_sum_exp(logits);
  const float own = logits[static_cast<std::size_t>(token)];
  ScoredToken scored;
  scored.token = token;
  scored.logprob = own - total;
  scored.rank = 1 + static_cast<std::int32_t>(std::count_if(
                        logits.begin(), logits.end(), [own](float other) { return other > own; }));
  for (const auto& [value, other] : best_of(logits, static_cast<std::size_t>(num_top))) {
    scored.top.push_back({other, value - total});
  }
  return scored;
}

}  // namespace sluice
