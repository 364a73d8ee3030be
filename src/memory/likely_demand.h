// How many blocks a set of sequences is likely to hold at one time to come, as a
// distribution: what they would hold if none ended, less what those return that
// do.
//
// What returns is a sum over few or many sequences, never below 0, and with a long
// tail above its mean: it is taken as gamma distributed, with Wilson and
// Hilferty's cube for its quantiles (PNAS 17, 1931). With many sequences that is
// the normal distribution; with few no quantile goes beyond `all`, as a normal
// one's would.
#pragma once

namespace sluice {

struct LikelyDemand {
  double all = 0;       // blocks, if none ended
  double mean = 0;      // of what is likely, at most `all`
  double variance = 0;  // around it

  // Demand is at most this with the probability that a normal variable is at most `z`.
  [[nodiscard]] double at(double z) const;
  // The z with at(z) = blocks, within [-kCertain, kCertain].
  [[nodiscard]] double deviations_to(double blocks) const;

  static constexpr double kCertain = 8;
};

// P(a normal variable is above z), and the z of which that is true.
[[nodiscard]] double upper_tail(double z);
[[nodiscard]] double deviations_for(double probability);

}  // namespace sluice
