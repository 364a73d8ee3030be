// What an instance says of itself (CN119149252A): its demand over its next
// windows, not a gauge of the past. One writer a field: the instance.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/ids.h"
#include "base/time.h"

namespace sluice {

enum class Role : std::uint8_t { kUnified, kPrefill, kDecode };
[[nodiscard]] const char* role_name(Role role);

// Likely state of the memory at a future window end.
struct DemandPoint {
  TimePoint at{};
  std::int64_t demand_blocks = 0;
  std::int64_t free_blocks = 0;
};

// Step time in seconds, as the instance has fitted it (memory/step_time_model.h), and
// from how many steps: where they are few, readers judge it by its peers.
struct StepCost {
  double base = 0;
  double per_prefill_token = 0;
  double per_decode_sequence = 0;
  double per_context_token = 0;    // that a decode row reads
  double per_prefill_context = 0;  // that a prefill row reads
  std::int64_t steps = 0;          // seen
  std::int64_t prefill_steps = 0;  // of these, with prefill in them
};

// The device that an instance computes on.
struct DeviceState {
  std::int64_t total_bytes = 0;  // of its memory; 0: it does not tell
  std::int64_t free_bytes = 0;   // for all processes
  double busy = 0;               // share of the last second or so in which it computed, 0 to 1
};

struct LoadReport {
  InstanceId instance;
  Incarnation incarnation;
  std::uint64_t sequence = 0;  // 1, 2, 3, ... within an incarnation
  TimePoint measured_at{};
  Role role = Role::kUnified;
  bool draining = false;

  std::int32_t waiting_requests = 0;
  std::int64_t waiting_tokens = 0;     // prompt tokens of those
  std::int64_t uncomputed_tokens = 0;  // prefill still to do, waiting and running
  std::int32_t running_sequences = 0;
  std::int64_t context_tokens = 0;  // KV held by the running set

  std::int32_t block_tokens = 16;
  std::int64_t total_blocks = 0;
  std::int64_t granted_blocks = 0;
  std::int64_t free_blocks = 0;  // unused prefixes included

  std::int64_t window_number = 0;
  TimePoint window_end{};
  std::vector<DemandPoint> outlook;  // at this and the next window ends, ascending
  StepCost step;
  std::int32_t step_token_budget = 512;            // most tokens that one step computes
  std::int32_t max_running = 0;                    // most sequences that run at once; 0: not stated
  std::array<std::int32_t, 3> output_quantiles{};  // p10, p50, p90 of output lengths, tokens

  DeviceState device;

  // Requests placed here that this report has seen: their ledger entries end.
  std::vector<RequestId> seen;
};

}  // namespace sluice
