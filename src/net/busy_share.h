// What share of the time an engine computed, of the last second or so. Pure.
#pragma once

#include <algorithm>
#include <chrono>

#include "base/time.h"

namespace sluice {

class BusyShare {
 public:
  // `busy_seconds` were spent in steps until now.
  void update(double busy_seconds, TimePoint now) {
    if (begun_at_ == TimePoint{} || now < begun_at_) {
      begun_at_ = now;
      begun_with_ = busy_seconds;
    }
    const Duration passed = now - begun_at_;
    if (passed < kSpan) return;
    share_ = std::clamp((busy_seconds - begun_with_) / to_seconds(passed), 0.0, 1.0);
    begun_at_ = now;
    begun_with_ = busy_seconds;
  }
  // 0 to 1; of the last span that is over.
  [[nodiscard]] double share() const { return share_; }

 private:
  static constexpr Duration kSpan = std::chrono::seconds(1);

  TimePoint begun_at_{};
  double begun_with_ = 0;
  double share_ = 0;
};

}  // namespace sluice
