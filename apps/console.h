// The terminal: logs, progress bars, stop signals.
#pragma once

#include <functional>
#include <string>

#include "base/time.h"

namespace sluice {

// Logs go to standard error; `level` as in --log-level.
void start_logging(const std::string& level);

// Shows progress of `what`, 0..1: a bar on a terminal, a line every quarter in a log.
[[nodiscard]] std::function<void(double)> progress_of(std::string what);

// SIGINT and SIGTERM as values. Constructed in main before any thread, so that
// all threads inherit the blocked mask and the signals come here alone.
class StopSignals {
 public:
  StopSignals();
  // Blocks until one arrives.
  void wait();
  // True if one arrives within the time.
  [[nodiscard]] bool wait_for(Duration time);
};

}  // namespace sluice
