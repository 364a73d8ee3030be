// Limits of a GlobalScheduler: plain values.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace sluice {

struct GlobalSchedulerOptions {
  std::int32_t queue_limit = 256;                     // requests; 0: refuse at once
  Duration queue_timeout = std::chrono::minutes(10);  // longest wait in the queue
  bool ledger = true;             // false: reports alone count, to see what the ledger is worth
  bool keep_inputs = true;        // of decisions, so that they can be made again
  std::int32_t max_attempts = 3;  // placements of one request
  Duration retry_wait{};          // who lost its instance waits so long where no other is
  // After a handoff the new instance's tokens may overtake the old one's last. They are
  // held so long; then what is missing was lost, and the request goes on elsewhere.
  Duration gap_limit = std::chrono::seconds(2);
  // An instance that does not report for so long has hung and is given up.
  Duration silence_limit = Duration::max();
};

}  // namespace sluice
