// What the KV manager counts. Plain values; the manager is the only writer.
#pragma once

#include <cstdint>

namespace sluice {

struct KvStats {
  std::int32_t total_blocks = 0;
  std::int32_t granted_blocks = 0;   // held by running sequences, shared ones once
  std::int32_t written_blocks = 0;   // of these, those that hold tokens already
  std::int64_t unfilled_tokens = 0;  // of these, places without a token: in last blocks
  std::int32_t cached_blocks = 0;    // kept prefixes that nobody uses
  std::int32_t free_blocks = 0;
  std::int64_t prefix_queries = 0;    // tokens looked up, ever
  std::int64_t prefix_hits = 0;       // of these found
  std::int64_t prefix_evictions = 0;  // blocks
};

// What was done because memory was short.
struct ShortfallCounts {
  std::int64_t prefix_blocks_dropped = 0;  // unused prefixes, for a grant
  std::int64_t windows_shortened = 0;      // by capacity
  std::int64_t windows_deferring = 0;      // in which not all could be granted one step
  std::int64_t refused_window = 0;         // admissions, by reason
  std::int64_t refused_forecast = 0;
};

// How well grants were used. "Ended" windows are those that ran a step and were
// not renewed early.
struct WindowUsage {
  std::int64_t windows_ended = 0;
  std::int64_t early_renewals = 0;
  double seconds_sum = 0;                  // from begin to the renewal, of all that ran a step
  std::int64_t unused_blocks_sum = 0;      // at the ends: granted but not written,
  std::int64_t granted_blocks_sum = 0;     //   and all that were granted
  std::int64_t window_granted_blocks = 0;  // by the present plan and admissions since
  std::int64_t grants = 0;                 // times that blocks were taken: at boundaries and
                                           //   admissions, never in a step
};

}  // namespace sluice
