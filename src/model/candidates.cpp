#include "model/candidates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sluice {
namespace {

// Keeps the shortest prefix, in the order of `before`, whose weights reach
// `wanted`: a selection that goes on only in the half where the cut lies.
template <class Before>
void keep_until(std::vector<Candidate>& candidates, double wanted, const Before& before) {
  auto first = candidates.begin();
  auto last = candidates.end();
  while (last - first > 64) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, before);
    double sum = 0.0;
    for (auto it = first; it != middle; ++it) sum += static_cast<double>(it->weight);
    if (sum >= wanted) {
      last = middle;
    } else {
      wanted -= sum;
      first = middle;
    }
  }
  std::sort(first, last, before);
  while (first != last && wanted > 0.0) {
    wanted -= static_cast<double>(first->weight);
    ++first;
  }
  if (first == candidates.begin()) ++first;
  candidates.erase(first, candidates.end());
}

bool heavier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

double total_of(const std::vector<Candidate>& candidates) {
  double total = 0.0;
  for (const Candidate& c : candidates) total += static_cast<double>(c.weight);
  return total;
}

}  // namespace

void keep_top_p(std::vector<Candidate>& candidates, float p, double total) {
  if (p >= 1.0F || candidates.empty()) return;
  keep_until(candidates, static_cast<double>(p) * total, heavier);
}

void keep_min_p(std::vector<Candidate>& candidates, float p) {
  if (p <= 0.0F || candidates.empty()) return;
  float heaviest = 0.0F;
  for (const Candidate& c : candidates) heaviest = std::max(heaviest, c.weight);
  const float least = std::min(p, 1.0F) * heaviest;
  std::erase_if(candidates, [least](const Candidate& c) { return c.weight < least; });
}

void keep_typical(std::vector<Candidate>& candidates, float p) {
  if (p >= 1.0F || candidates.empty()) return;
  const double total = total_of(candidates);
  double entropy = 0.0;
  for (const Candidate& c : candidates) {
    const double share = static_cast<double>(c.weight) / total;
    if (share > 0.0) entropy -= share * std::log(share);
  }
  const auto distance = [&](const Candidate& c) {
    return std::abs(-std::log(static_cast<double>(c.weight) / total) - entropy);
  };
  keep_until(candidates, static_cast<double>(p) * total,
             [&](const Candidate& a, const Candidate& b) {
               const double da = distance(a);
               const double db = distance(b);
               return da != db ? da < db : a.token < b.token;
             });
}

Token draw(const std::vector<Candidate>& candidates, Rng& rng) {
  double left = rng.uniform() * total_of(candidates);
  for (const Candidate& c : candidates) {
    left -= static_cast<double>(c.weight);
    if (left < 0.0) return c.token;
  }
  return candidates.back().token;  // rounding
}

}  // namespace sluice
