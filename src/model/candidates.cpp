#include "model/candidates.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sluice {
namespace {

// Keeps the shortest prefix, in the order of `before`, whose weights reach
// `wanted`: a selection that goes on only in the half where the cut lies.
template <class Item, class Before>
void keep_until(std::vector<Item>& items, double wanted, const Before& before) {
  auto first = items.begin();
  auto last = items.end();
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
  if (first == items.begin()) ++first;
  items.erase(first, items.end());
}

bool heavier(const Candidate& a, const Candidate& b) {
  return a.weight != b.weight ? a.weight > b.weight : a.token < b.token;
}

// A candidate and how far its information is from the expected one.
struct Surprise : Candidate {
  double distance = 0.0;
};

bool less_surprising(const Surprise& a, const Surprise& b) {
  return a.distance != b.distance ? a.distance < b.distance : a.token < b.token;
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
  // Information of a token: log(total) - log(weight), in nats.
  std::vector<Surprise> surprises;
  surprises.reserve(candidates.size());
  double weighted = 0.0;
  for (const Candidate& c : candidates) {
    const double log_weight = std::log(static_cast<double>(c.weight));
    weighted += static_cast<double>(c.weight) * log_weight;
    surprises.push_back({c, log_weight});
  }
  const double mean = weighted / total;  // of log(weight); the totals cancel
  for (Surprise& s : surprises) s.distance = std::abs(s.distance - mean);
  keep_until(surprises, static_cast<double>(p) * total, less_surprising);
  candidates.assign(surprises.begin(), surprises.end());
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
