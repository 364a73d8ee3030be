// The times between tokens of all answers, counted in bins a fortieth of an octave wide
// (1.7 %) from a microsecond on, so that millions of them cost nothing to keep.
// Part of World.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace sluice {

class GapHistogram final {
 public:
  void add(Duration gap) {
    const double microseconds = std::max(to_seconds(gap) * 1e6, 1.0);
    const auto bin = static_cast<std::size_t>(kBinsAnOctave * std::log2(microseconds));
    counts_[std::min(bin, counts_.size() - 1)] += 1;
    total_ += 1;
    seconds_ += to_seconds(gap);
  }

  [[nodiscard]] double mean() const {
    return total_ > 0 ? seconds_ / static_cast<double>(total_) : 0;
  }
  // Seconds, the middle of a bin; 0 if there was no gap.
  [[nodiscard]] double quantile(double share) const {
    const double rank = share * static_cast<double>(total_);
    std::int64_t below = 0;
    for (std::size_t bin = 0; bin < counts_.size(); ++bin) {
      below += counts_[bin];
      if (counts_[bin] > 0 && static_cast<double>(below) >= rank) {
        return 1e-6 * std::exp2((static_cast<double>(bin) + 0.5) / kBinsAnOctave);
      }
    }
    return 0;
  }

 private:
  static constexpr double kBinsAnOctave = 40;
  std::array<std::int64_t, 1600> counts_{};  // up to 300,000 s
  std::int64_t total_ = 0;
  double seconds_ = 0;
};

}  // namespace sluice
