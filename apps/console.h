// The terminal: logs, progress bars, stop signals.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/time.h"

namespace sluice {

// Logs go to standard error; `level` as in --log-level.
void start_logging(const std::string& level);

// Shows progress of `what`, 0..1: a bar on a terminal, a line every quarter in a log.
[[nodiscard]] std::function<void(double)> progress_of(std::string what);

// SIGINT, SIGTERM and SIGHUP as values. Constructed in main before any thread, so that
// all threads inherit the blocked mask and the signals come here alone.
class StopSignals {
 public:
  StopSignals();
  enum class Signal : std::uint8_t { kStop, kHangup };
  // Blocks until one arrives.
  [[nodiscard]] Signal wait();
  // True if one arrives within the time; a hangup, too, is a wish to stop here.
  [[nodiscard]] bool wait_for(Duration time);
};

}  // namespace sluice
