// The virtual network between the scheduler with its gateway and the instances, and
// among these: a value, no behaviour.
//
// A link delivers in order, like a stream: requests and tokens are never lost
// while both ends live, they wait out a partition. Load reports may be lost, and so
// may what instances say to each other of handoffs.
#pragma once

#include <cstdint>
#include <vector>

#include "base/time.h"

namespace sluice {

struct NetworkOptions {
  Duration latency = std::chrono::microseconds(100);  // one way
  Duration jitter = std::chrono::microseconds(50);    // uniform, added
  Duration report_delay{};                            // load reports take so much longer
  double report_loss = 0;                             // share that never arrives
  double mail_loss = 0;                               // of what instances say to each other
  double kv_bytes_per_s = 50e9;  // of an instance's link for KV, 400 Gbit/s; no less than 1
};

enum class FaultKind : std::uint8_t {
  kCrash,      // the instance is gone; a new incarnation starts after `length`
  kHang,       // it does nothing for `length`, then goes on
  kPartition,  // nothing gets through either way for `length`
  kDrain,      // it reports that it wants no more requests, for `length`
};

struct Fault {
  Duration at{};
  FaultKind kind = FaultKind::kCrash;
  std::uint32_t instance = 0;
  Duration length = std::chrono::seconds(10);
};

}  // namespace sluice
