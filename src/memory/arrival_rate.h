// How many blocks arrivals have taken a second, lately: what the window planner
// leaves room for. Part of KvManager.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "base/time.h"

namespace sluice {

class ArrivalRate final {
 public:
  void came(std::int32_t blocks) { blocks_ += blocks; }
  void passed(Duration time) {
    const double seconds = to_seconds(time);
    const double keep = std::exp2(-seconds / kHalfLife);
    seconds_ = keep * (seconds_ + seconds);
    blocks_ *= keep;
  }
  [[nodiscard]] double blocks_a_second() const {
    return blocks_ / std::max(seconds_, kHalfLife / 8);  // the first ones are not a rate yet
  }

 private:
  static constexpr double kHalfLife = 10;  // seconds
  double blocks_ = 0;
  double seconds_ = 0;
};

}  // namespace sluice
