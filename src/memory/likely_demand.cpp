#include "memory/likely_demand.h"

#include <algorithm>
#include <cmath>

namespace sluice {

double LikelyDemand::at(double z) const {
  const double back = all - mean;
  if (back <= 0) return all;
  const double v = std::max(variance, 0.0) / (9 * back * back);
  const double root = std::max(1 - v - z * std::sqrt(v), 0.0);
  return all - back * root * root * root;
}

double LikelyDemand::deviations_to(double blocks) const {
  if (blocks >= all) return kCertain;
  const double back = all - mean;
  const double v = back > 0 ? std::max(variance, 0.0) / (9 * back * back) : 0;
  if (v <= 0) return blocks >= mean ? kCertain : -kCertain;
  const double root = std::cbrt((all - blocks) / back);
  return std::clamp((1 - v - root) / std::sqrt(v), -kCertain, kCertain);
}

double upper_tail(double z) {
  return 0.5 * std::erfc(z * std::sqrt(0.5));
}

double deviations_for(double probability) {
  double low = -LikelyDemand::kCertain;
  double high = LikelyDemand::kCertain;
  for (int i = 0; i < 40; ++i) {
    const double middle = (low + high) / 2;
    (upper_tail(middle) > probability ? low : high) = middle;
  }
  return low;
}

}  // namespace sluice
