// How long a handoff waits, and for what is worth one: plain values.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace sluice {

struct HandoffOptions {
  std::int32_t max_tries = 3;                // reservations asked for, without an answer's wait
  std::int32_t least_left_tokens = 4;        // to be generated; for less it stays
  std::int32_t spare_tokens = 64;            // generated here while KV goes over
  Duration lease = std::chrono::seconds(5);  // of reservations and of kept KV
  Duration reserve_timeout = std::chrono::seconds(1);
  Duration send_timeout = std::chrono::seconds(30);
  Duration patience = std::chrono::seconds(10);  // for room elsewhere, before it stays for good
  Duration least_wait = std::chrono::milliseconds(20);  // before the same targets are asked again
};

}  // namespace sluice
