// A set of tokens with weights, and the cuts that sampling makes in it.
#pragma once

#include <vector>

#include "base/ids.h"
#include "base/rng.h"

namespace sluice {

struct Candidate {
  Token token = 0;
  float weight = 0.0F;  // a probability but for a common factor; > 0
};

// Each keeps at least one candidate of a set that is not empty. No cut needs its
// candidates sorted, and none sorts more of them than it must.

// The fewest heaviest whose weights reach the share `p` of `total`, which may
// count candidates that are not in the set.
void keep_top_p(std::vector<Candidate>& candidates, float p, double total);
// Those not lighter than the share `p` of the heaviest.
void keep_min_p(std::vector<Candidate>& candidates, float p);
// The fewest whose information is closest to the expected one and that reach the
// share `p` (locally typical sampling).
void keep_typical(std::vector<Candidate>& candidates, float p);

// One of them, by weight.
[[nodiscard]] Token draw(const std::vector<Candidate>& candidates, Rng& rng);

}  // namespace sluice
