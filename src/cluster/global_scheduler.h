// Sends each request to an instance whose load meets the condition, and keeps
// those that none can take now in a bounded queue (CN119149252A).
//
// An actor without threads: whoever owns it calls one method at a time and
// passes the time in. Belongs to the scheduler's loop.
//
// Invariant: a request given to submit() is queued, or placed on one incarnation
// of one instance, or has had its finishing event. Events of instances pass through
// here: a lost instance's requests go on elsewhere after the last token known, under
// the next attempt number, and what still comes of the old attempt is dropped.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "cluster/global_scheduler_options.h"
#include "cluster/serving.h"
#include "engine/request.h"
#include "scheduling/ledger.h"
#include "scheduling/load_table.h"
#include "scheduling/placement.h"
#include "scheduling/prefix_directory.h"

namespace sluice {

// The way to the instances. Calls return at once.
class InstancePort {
 public:
  virtual ~InstancePort() = default;
  // False: its inbox is full or it is gone; `request` is then untouched.
  [[nodiscard]] virtual bool submit(const Placement& placement,
                                    std::unique_ptr<Request>& request) = 0;
  // Arrives after the submit() of the same request, if at all.
  virtual void cancel(const Placement& placement, RequestId request) = 0;
  // The scheduler has given this incarnation up: it is to stop what it holds.
  virtual void abandon(const Placement&) {}
};

class GlobalScheduler final {
 public:
  static constexpr std::size_t kMaxDecisions = 256;

  // References outlive the scheduler. The clock times placements and nothing else.
  GlobalScheduler(GlobalSchedulerOptions options, std::unique_ptr<PlacementPolicy> policy,
                  InstancePort& instances, TokenSink& sink, const Clock& clock);

  void on_report(LoadReport report, TimePoint now);
  void submit(std::unique_ptr<Request> request, TimePoint now);
  // Unknown and finished requests are ignored.
  void cancel(RequestId request, TimePoint now);
  // What an instance says of its requests; passed on to the sink.
  void on_tokens(std::vector<TokenEvent>&& events, TimePoint now);
  // It was handed over and runs there now; if it has ended, nobody wants it there. What
  // is said of an attempt that was given up changes nothing.
  void runs_at(RequestId request, std::int32_t attempt, const Placement& placement, TimePoint now);
  // A decision of an instance's local scheduler, for the record.
  void note(Decision decision);
  // An incarnation has ended: what was placed there goes elsewhere, or ends with this error.
  void instance_gone(InstanceId instance, Incarnation incarnation, const Error& error,
                     TimePoint now);
  // Time passes: deadlines, the ledger's limit, another try for the queue.
  void tick(TimePoint now);
  // From now on new requests are refused; queued ones are still served.
  void drain() { draining_ = true; }
  // Ends what is queued; for the end of the process.
  void fail_queued(const Error& error, TimePoint now);
  // From now on what loses its instance ends: the process is about to.
  void stop_retrying() { retrying_ = false; }

  // Neither queued nor placed requests are left.
  [[nodiscard]] bool idle() const { return queue_.empty() && placed_.empty(); }
  [[nodiscard]] bool has_queue() const { return !queue_.empty(); }
  [[nodiscard]] const LoadTable& loads() const { return table_; }
  // Everything but the engines' own statistics.
  [[nodiscard]] ClusterSnapshot snapshot(TimePoint now) const;

 private:
  struct Queued {
    std::unique_ptr<Request> request;
    TimePoint since{};
    std::vector<std::uint64_t> prefix;  // hashes of its prompt
    bool recorded = false;              // its first refusal is among the decisions
    std::optional<Error> lost;          // why it is here again
  };
  struct Placed {
    Placement placement;
    Request request;  // with the output so far
    bool cancelled = false;
    bool moved = false;             // it was handed over
    std::vector<TokenEvent> early;  // ahead of tokens that are still to come; by index
    TimePoint early_since{};
  };
  using PlacedAt = std::map<RequestId, Placed>::iterator;
  enum class Attempt : std::uint8_t { kPlaced, kWait, kRefused };

  Attempt try_place(Queued& queued, TimePoint now);
  [[nodiscard]] PlacementQuery query_for(const Request& request,
                                         const std::vector<std::uint64_t>& prefix,
                                         TimePoint now) const;
  void commit(const Decision& decision, const PlacementQuery& query,
              const std::vector<std::uint64_t>& prefix, TimePoint now);
  void serve_queue(TimePoint now);
  void enqueue(Queued queued, TimePoint now);
  void record(Decision decision);
  void end(const Request& request, FinishReason finish, Error error, TimePoint now);
  void take(TokenEvent&& event, std::vector<TokenEvent>& out, std::vector<Queued>& lost,
            TimePoint now);
  [[nodiscard]] bool admit(PlacedAt it, TokenEvent& event, std::vector<Queued>& lost,
                           TimePoint now);
  void give_gaps_up(TimePoint now);
  void lose_placed_on(InstanceId instance, Incarnation up_to, const Error& error, TimePoint now);
  void retry(std::vector<Queued> lost, TimePoint now);
  void end_lost(TimePoint now);
  void abandon_silent(TimePoint now);
  [[nodiscard]] std::int32_t retry_after_s() const;

  const GlobalSchedulerOptions options_;
  const std::unique_ptr<PlacementPolicy> policy_;
  InstancePort& instances_;
  TokenSink& sink_;
  const Clock& clock_;

  LoadTable table_;
  Ledger ledger_{table_};
  PrefixDirectory prefixes_;
  std::deque<Queued> queue_;  // first come, first served
  std::map<RequestId, Placed> placed_;
  std::set<RequestId> gaps_;  // some events of these are early, or were
  bool draining_ = false;
  bool retrying_ = true;

  std::deque<Decision> decisions_;          // newest last
  std::array<std::int64_t, 4> outcomes_{};  // by PlacementOutcome
  std::int64_t retries_ = 0;
  FixedHistogram<12> placement_seconds_ = ClusterSnapshot{}.placement_seconds;
  Duration head_wait_{};  // what the last refusal of the head predicted
  TimePoint last_dequeue_{};
  double dequeue_gap_s_ = 0;  // aged mean between two placements from the queue
};

}  // namespace sluice
