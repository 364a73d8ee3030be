// The last known load of every instance (CN119149252A): what schedulers, global
// and local, choose from.
//
// Belongs to its scheduler's loop. One writer a field: a row's load is the
// instance's report, its `ledger` is this scheduler's own (scheduling/ledger.h),
// and the load used is their sum. An instance that was not heard of is absent,
// not idle; ages are counted on this table's clock, from the report's arrival,
// since clocks of two machines do not compare.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "scheduling/load_index.h"
#include "scheduling/load_report.h"
#include "scheduling/peer_costs.h"

namespace sluice {

// What a scheduler has sent to an instance that no report of it has seen.
struct LedgerLoad {
  std::int64_t tokens = 0;  // prompt tokens to compute
  std::int64_t blocks = 0;  // likely blocks, output included
  std::int32_t requests = 0;
};

// An instance's load in the form that a policy reads; derived when its report or
// ledger changes, never when a request is placed.
struct LoadRow {
  static constexpr std::size_t kMaxPoints = 9;

  InstanceId instance;
  Incarnation incarnation;
  TimePoint received_at{};
  Role role = Role::kUnified;
  bool present = false;  // false: gone, kept to know its incarnation
  bool draining = false;

  double step_s = 0;        // a step of all that was sent there, without prefill
  double token_s = 0;       // of one more prefill token, > 0
  double wait_s = 0;        // until a request that comes now gets its turn
  double window_end_s = 0;  // after received_at
  double crowd = 1;         // weight of a second of prefill: it delays all that runs there
  double decode_s = 0;      // that the pace of decoding there adds to the cost

  std::int32_t running = 0;
  std::int32_t waiting = 0;
  std::int32_t max_running = 0;  // 0: not stated
  std::int64_t kv_tokens = 0;    // held by the running set, and prompts that wait
  std::int64_t uncomputed_tokens = 0;
  std::int64_t waiting_blocks = 0;  // likely blocks of those that wait
  std::int64_t total_blocks = 0;
  std::int32_t block_tokens = 16;
  std::array<std::int32_t, 3> output_quantiles{};

  // Free blocks now, then at the next window ends; seconds after received_at.
  std::size_t num_points = 0;  // >= 1 once reported
  std::array<double, kMaxPoints> point_s{};
  std::array<std::int64_t, kMaxPoints> point_free{};

  LedgerLoad ledger;

  // Requests that wait there, seen or not.
  [[nodiscard]] std::int32_t queue_length() const { return waiting + ledger.requests; }
  [[nodiscard]] std::int32_t outstanding() const { return running + queue_length(); }
  [[nodiscard]] bool idle() const { return outstanding() == 0; }
  [[nodiscard]] bool has_slot() const { return max_running == 0 || outstanding() < max_running; }
  [[nodiscard]] bool serves(Role wanted) const { return role == Role::kUnified || role == wanted; }
  [[nodiscard]] std::int64_t capacity_tokens() const { return total_blocks * block_tokens; }
  // Of a request that waits so long and then has so many tokens computed.
  [[nodiscard]] double cost_of(double wait, double tokens) const {
    return (wait + tokens * token_s) * crowd + decode_s;
  }
  // Blocks not spoken for at a point.
  [[nodiscard]] std::int64_t headroom(std::size_t point) const {
    return point_free[point] - waiting_blocks - ledger.blocks;
  }
  [[nodiscard]] std::int64_t blocks_for(std::int64_t tokens) const {
    return (tokens + block_tokens - 1) / block_tokens;
  }
};

enum class ReportOutcome : std::uint8_t {
  kApplied,
  kRestarted,  // applied; the instance is another incarnation than the one known
  kOld,        // ignored: not newer than what is known
  kInvalid,    // ignored: numbers that no instance can have
};

class LoadTable final {
 public:
  // O(log instances), but for the few times when step costs become known. Incarnations grow: a
  // report of a lower one is old.
  ReportOutcome update(LoadReport report, TimePoint now);
  // The instance is gone; reports of this incarnation are ignored from now on.
  void remove(InstanceId instance);
  // It failed a request, or stops: nothing is placed there until it reports again.
  void hold(InstanceId instance);
  // As another table showed it, for decisions that are made again; no report is known.
  void restore(const LoadRow& row);
  // Written by the ledger only.
  void set_ledger(InstanceId instance, const LedgerLoad& ledger);

  // In the order of arrival; also the rows of those gone.
  [[nodiscard]] std::span<const LoadRow> rows() const { return rows_; }
  [[nodiscard]] const LoadIndex& index() const { return index_; }
  // Null: never heard of, or gone. Valid until the next non-const call.
  [[nodiscard]] const LoadRow* find(InstanceId instance) const;
  [[nodiscard]] const LoadReport* report(InstanceId instance) const;
  // The instance present that can hold the longest sequence for a role, all else
  // free; null: none is known.
  struct Capacity {
    std::int64_t tokens = 0;
    std::int32_t block_tokens = 0;
    auto operator<=>(const Capacity&) const = default;
  };
  [[nodiscard]] std::optional<Capacity> largest(Role wanted) const;
  // Ids of those present, ascending.
  [[nodiscard]] std::vector<InstanceId> instances() const;

 private:
  [[nodiscard]] std::size_t row_of(InstanceId instance);
  void derive(std::size_t row);
  void count_capacity(const LoadRow& row, int by);

  std::vector<LoadRow> rows_;
  std::vector<LoadReport> reports_;  // by row
  std::unordered_map<InstanceId, std::size_t> row_of_;
  LoadIndex index_;
  PeerCosts peers_;
  std::array<std::map<Capacity, int>, 3> capacities_;  // by Role; how many have it
};

}  // namespace sluice
