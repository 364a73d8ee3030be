// Time as a value that is passed in, so that a simulator can own it.
#pragma once

#include <chrono>

namespace sluice {

using Duration = std::chrono::nanoseconds;
// Nanoseconds on some monotonic clock; meaningful only against the same clock.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

[[nodiscard]] constexpr double to_seconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}
// Saturates instead of overflowing: forecasts may be absurdly long.
[[nodiscard]] constexpr Duration from_seconds(double s) {
  constexpr double kLimit = 9.0e9;  // about 285 years
  if (!(s < kLimit)) s = kLimit;
  if (s < -kLimit) s = -kLimit;
  return Duration(static_cast<Duration::rep>(s * 1e9));
}

// A monotonic clock. now() never goes back; any thread may call it.
class Clock {
 public:
  virtual ~Clock() = default;
  [[nodiscard]] virtual TimePoint now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override;
};

// A clock that moves only when told. Single-threaded.
class ManualClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override { return now_; }
  void advance(Duration d) { now_ += d; }
  void set(TimePoint t) { now_ = t; }

 private:
  TimePoint now_{};
};

}  // namespace sluice
