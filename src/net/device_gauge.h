// What tells of the device that engines compute on: its memory, and how busy it is where it
// says so itself; otherwise the engine's loop reckons that from its steps.
#pragma once

#include <cstdint>
#include <optional>

namespace sluice {

class DeviceGauge {
 public:
  struct Reading {
    std::int64_t total_bytes = 0;  // 0: not told
    std::int64_t free_bytes = 0;   // for all processes
    std::optional<double> busy;    // 0 to 1, of all processes
  };

  virtual ~DeviceGauge() = default;
  // Any thread; does not wait.
  [[nodiscard]] virtual Reading read() const = 0;
};

}  // namespace sluice
