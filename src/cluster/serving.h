// What a gateway needs of the cluster behind it, whether that is one engine in
// the same process or many processes on many nodes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "cluster/handoff_stats.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "scheduling/load_report.h"
#include "scheduling/placement.h"

namespace sluice {

struct InstanceSnapshot {
  std::string name;  // an operator's; empty where all is one process
  LoadReport report;
  EngineStats stats;
  std::optional<HandoffStats> handoffs;  // none: it takes no part in them
  std::int64_t ledger_tokens = 0;
  Duration report_age{};
};

struct ClusterSnapshot {
  TimePoint at{};
  std::vector<InstanceSnapshot> instances;  // by id
  std::vector<Decision> decisions;          // newest last, at most 256
  std::int32_t queued_requests = 0;         // at the global scheduler, not placed yet
  std::int32_t queue_limit = 0;
  bool draining = false;
  struct Placed {  // counters for sluice_placements_total
    std::string policy;
    std::string reason;  // an outcome's name
    std::int64_t count = 0;
  };
  std::vector<Placed> placements;
  std::int64_t retries = 0;  // requests that lost their instance and were placed again
  double placement_seconds_sum = 0;
  std::int64_t placement_count = 0;
  FixedHistogram<12> placement_seconds{
      {1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 1e-2, 0.1}, {}, 0};
};

// Thread-safe. Every accepted request ends with exactly one finishing event in
// the sink given at construction, whatever happens: placement refused (kError
// with kBusy or kNeverFits), instance lost, cancelled.
class Serving {
 public:
  virtual ~Serving() = default;

  // kBusy: the inbox is full. kUnavailable: draining.
  [[nodiscard]] virtual Status submit(std::unique_ptr<Request> request) = 0;
  // Frees what the request holds; its last event is kCancelled. Unknown ids are ignored.
  virtual void cancel(RequestId request) = 0;
  // The last published state; at most about 100 ms old while anything runs.
  [[nodiscard]] virtual std::shared_ptr<const ClusterSnapshot> snapshot() const = 0;
  // At least one instance can take requests.
  [[nodiscard]] virtual bool ready() const = 0;
};

}  // namespace sluice
