// What an instance counts of its handoffs; copied out for metrics and the page.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/engine_stats.h"
#include "scheduling/placement.h"

namespace sluice {

enum class HandoffOutcome : std::uint8_t {
  kMoved,      // the target runs it
  kStayed,     // no target would have it: it goes on where it was
  kEnded,      // it ended here before it had left
  kCancelled,  // its client left while it was on its way
};
inline constexpr std::array<const char*, 4> kHandoffOutcomeNames = {"moved", "stayed", "ended",
                                                                    "cancelled"};

// What a source has spent its time in.
enum class HandoffStage : std::uint8_t { kPlacing, kReserving, kSending, kClosing, kCommitting };
inline constexpr std::array<const char*, 5> kHandoffStageNames = {"placing", "reserving", "sending",
                                                                  "closing", "committing"};

// What has come from a source, in the order of its life.
enum class ArrivalStage : std::uint8_t { kReserved, kCommitted, kRunning, kEnded };

// One of an instance's handoffs, as its source or its target.
struct OpenHandoff {
  RequestId request;
  std::uint8_t stage = 0;  // a HandoffStage of a source's, an ArrivalStage of a target's
  Placement peer;          // with kPlacing: who was asked last
};

using StageSeconds = FixedHistogram<12>;
inline StageSeconds stage_seconds() {
  return {{1e-5, 1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.05, 0.1, 0.5, 1, 5}, {}, 0};
}

using OutcomeCounts = std::array<std::int64_t, 4>;  // by HandoffOutcome
inline constexpr const char* kNoTransport = "none";

struct SourceStats {
  // By what carried the sequence's KV last; kNoTransport: nothing did.
  std::map<std::string, OutcomeCounts> outcomes;
  std::array<StageSeconds, 5> stages{stage_seconds(), stage_seconds(), stage_seconds(),
                                     stage_seconds(), stage_seconds()};
  std::int64_t not_before = 0;    // reservations refused for now,
  std::int64_t never = 0;         // for good,
  std::int64_t targets_lost = 0;  // targets that died, forgot it or did not answer

  [[nodiscard]] OutcomeCounts total() const {
    OutcomeCounts sum{};
    for (const auto& [transport, counts] : outcomes) {
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += counts[i];
    }
    return sum;
  }
};

struct TransferStats {
  std::map<std::string, std::int64_t> bytes;  // that left, by what carried them
  std::int64_t blocks_copied = 0;
  std::int64_t blocks_held = 0;  // not sent: the target had them as a prefix
  std::int64_t failed = 0;
};

struct HandoffStats {
  SourceStats source;
  TransferStats transfer;
  std::int64_t leaving = 0;       // handoffs under way, as the source
  std::int64_t reservations = 0;  // held for others, not running yet
  std::int64_t taken = 0;         // that came and ran here
  std::int64_t expired = 0;       // reservations whose source fell silent
};

// What an instance tells of its handoffs from time to time.
struct HandoffReport {
  HandoffStats stats;
  std::vector<Decision> decisions;  // of its local scheduler, since the last one
};

}  // namespace sluice
