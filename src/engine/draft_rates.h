// How often the next guess is right if those before it were, by how many tokens its
// match had: a long match is mostly a copy, a short one mostly chance. An aged mean;
// plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice {

class DraftRates final {
 public:
  [[nodiscard]] double of(std::int32_t match) const { return rates_[kind_of(match)]; }

  // Of `tried` guesses the first `right` were; those after a wrong one say nothing.
  void observe(std::int32_t match, std::int32_t tried, std::int32_t right, double weight) {
    double& rate = rates_[kind_of(match)];
    for (std::int32_t i = 0; i < right; ++i) rate += weight * (1 - rate);
    if (right < tried) rate -= weight * rate;
  }

 private:
  static constexpr std::size_t kind_of(std::int32_t match) {
    return match < 5 ? 0 : match < 10 ? 1 : 2;
  }
  std::array<double, 3> rates_{0.4, 0.6, 0.8};  // until some have been seen
};

}  // namespace sluice
