// The thread that owns the global scheduler.
//
// Everything reaches it as a message in its inbox; it publishes a snapshot of the
// cluster that any thread may read. Internal to net/.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>

#include "base/inbox.h"
#include "cluster/global_scheduler.h"

namespace sluice {

struct SubmitMessage {
  std::unique_ptr<Request> request;
};
struct CancelMessage {
  RequestId request;
};
struct ReportMessage {
  LoadReport report;
  std::shared_ptr<const EngineStats> stats;       // null: as before
  std::shared_ptr<const HandoffReport> handoffs;  // null: as before
  std::string name;                               // of the instance; empty: it has none
};
// The request runs there now: it was handed over.
struct RunsAtMessage {
  RequestId request;
  std::int32_t attempt = 0;
  Placement placement;
};
struct EventsMessage {  // of an instance
  std::vector<TokenEvent> events;
};
// The last message of an instance: its loop has ended.
struct GoneMessage {
  InstanceId instance;
  Incarnation incarnation;
  Error error;
};
struct DrainMessage {};
struct ClosingMessage {};  // instances are about to stop: nothing is tried again
struct StopMessage {};

using SchedulerMessage =
    std::variant<SubmitMessage, CancelMessage, ReportMessage, EventsMessage, RunsAtMessage,
                 GoneMessage, DrainMessage, ClosingMessage, StopMessage>;
using SchedulerInbox = Inbox<SchedulerMessage>;

class SchedulerLoop final {
 public:
  // References outlive the loop. `inbox` is what others push to.
  SchedulerLoop(GlobalSchedulerOptions options, std::unique_ptr<PlacementPolicy> policy,
                Duration snapshot_interval, SchedulerInbox& inbox, InstancePort& instances,
                TokenSink& sink, const Clock& clock);
  ~SchedulerLoop();
  SchedulerLoop(const SchedulerLoop&) = delete;
  SchedulerLoop& operator=(const SchedulerLoop&) = delete;

  void start();
  // Ends queued requests, closes the inbox, joins. Instances are stopped before.
  void stop();

  // Any thread.
  [[nodiscard]] std::shared_ptr<const ClusterSnapshot> snapshot() const;
  [[nodiscard]] bool ready() const { return ready_.load(std::memory_order_relaxed); }
  [[nodiscard]] bool wait_drained(Duration timeout);

 private:
  void run();
  void handle(SchedulerMessage& message, TimePoint now);
  void publish(TimePoint now);
  void note_progress();
  [[nodiscard]] Duration sleep_time(TimePoint now) const;

  const Duration snapshot_interval_;
  SchedulerInbox& inbox_;
  TokenSink& sink_;
  const Clock& clock_;

  // Of the loop's thread.
  GlobalScheduler scheduler_;
  struct Known {
    std::string name;
    std::shared_ptr<const EngineStats> stats;
    std::shared_ptr<const HandoffReport> handoffs;
  };
  std::unordered_map<InstanceId, Known> known_;
  bool draining_ = false;
  bool stopping_ = false;
  bool unpublished_ = true;  // something happened since the last snapshot
  TimePoint published_at_{};
  TimePoint ticked_at_{};

  std::atomic<bool> ready_{false};
  mutable std::mutex mutex_;
  std::condition_variable drained_changed_;
  std::shared_ptr<const ClusterSnapshot> snapshot_;  // guarded by mutex_
  bool drained_ = false;                             // guarded by mutex_

  std::thread thread_;
};

}  // namespace sluice
