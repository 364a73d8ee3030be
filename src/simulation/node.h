// One simulated instance: the engine and the agents that serve, on a clock of
// their own that runs ahead of the world's by the step that is being computed.
//
// A step is computed at its beginning, at once; what leaves it is stamped with
// its end, as on a device. Owned by its World. Invariant: whatever the node has
// sent is in one of its outboxes until the world delivers or drops it.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "cluster/handoff_agent.h"
#include "cluster/instance_agent.h"
#include "simulation/device.h"
#include "simulation/node_peers.h"
#include "simulation/node_words.h"
#include "simulation/simulated_model.h"

namespace sluice {

struct NodeOptions {
  EngineOptions engine;
  Role role = Role::kUnified;
  Duration report_interval = std::chrono::milliseconds(20);
  Duration idle_report_interval = std::chrono::seconds(1);
  std::int64_t kv_token_bytes = 131072;  // of one token in all layers: what a handoff moves
};

// Of all lives of an instance, as the source of handoffs; `taken` and `expired` as a target.
struct HandoffCounts {
  std::int64_t moved = 0;
  std::int64_t stayed = 0;      // no target would have it
  std::int64_t other_ends = 0;  // ended here, or cancelled on its way
  std::int64_t refused = 0;     // reservations, for now or for good
  std::int64_t lost = 0;        // targets that died, forgot it or did not answer
  std::int64_t bytes = 0;
  std::int64_t taken = 0;
  std::int64_t expired = 0;

  HandoffCounts& operator+=(const HandoffCounts& other);
};

class Node final : private TokenSink, private ReportSink, private PeerPort {
 public:
  // A node that waits for its engine's memory looks again after this time.
  static constexpr Duration kRetry = std::chrono::milliseconds(2);

  // References outlive the node. `peers`: null: it takes no part in handoffs.
  Node(InstanceId id, NodeOptions options, SimulatedModel& model, const Clock& world,
       NodePeers* peers = nullptr);
  ~Node() override;

  void start();  // a new incarnation
  void crash();  // what it holds, and what would leave it later, is gone
  void hang_until(TimePoint until) { busy_until_ = std::max(busy_until_, until); }
  // It takes no more requests, and hands over what it has.
  void drain() { push(Drain{}); }

  // Arrive in the inbox, which is read before the next step. A request for another
  // incarnation is dropped, as a receiver does.
  void submit(std::unique_ptr<Request> request, Incarnation incarnation);
  void cancel(RequestId request);
  // Of and from other instances. Ignored where no part is taken in handoffs.
  void hear(LoadReport report) { push(std::move(report)); }
  void deliver(HandoffMail letter) { push(std::move(letter)); }
  void peer_gone(const Placement& peer) { push(PeerGone{peer}); }

  // Computes one step if it is free and has something to do. Returns when it
  // wants to be called again; max(): only when something arrives.
  TimePoint run();

  [[nodiscard]] InstanceId id() const { return id_; }
  [[nodiscard]] bool alive() const { return life_ != nullptr; }
  [[nodiscard]] bool idle() const;  // holds no request and no reservation
  // It hands over, so others' reports go to it.
  [[nodiscard]] bool seeks_targets() const { return alive() && seeks_targets_; }
  [[nodiscard]] Incarnation incarnation() const { return incarnation_; }
  [[nodiscard]] TimePoint busy_until() const { return busy_until_; }
  [[nodiscard]] const Engine* engine() const;  // null: it is not alive
  [[nodiscard]] const NodeOptions& options() const { return options_; }
  // As of its last report: a cheap look from outside.
  [[nodiscard]] const LoadReport& last_report() const { return last_report_; }
  // Over all of its lives.
  [[nodiscard]] double busy_seconds() const;
  [[nodiscard]] std::int64_t preemptions() const;
  [[nodiscard]] std::int64_t steps() const;
  [[nodiscard]] HandoffCounts handoffs() const;
  // Null: not alive, or no part in handoffs.
  [[nodiscard]] const HandoffAgent* handoff_agent() const;

  std::deque<Sent<Word>> words;  // to the scheduler's side,
  std::deque<Sent<LoadReport>> reports;
  std::deque<Sent<LoadReport>> shared;  // and to other instances
  std::deque<Sent<HandoffMail>> mail;

 private:
  class AheadClock;
  struct Life;
  struct PeerGone {
    Placement peer;
  };
  struct Drain {};
  using Command =
      std::variant<std::unique_ptr<Request>, RequestId, HandoffMail, LoadReport, PeerGone, Drain>;
  struct Totals {
    double busy_seconds = 0;
    std::int64_t preemptions = 0;
    std::int64_t steps = 0;
    HandoffCounts handoffs;
  };
  [[nodiscard]] Totals totals() const;
  void push(Command command) {
    if (life_) inbox_.push_back(std::move(command));
  }
  void handle(Command& command);
  void refuse(const Request& request);
  void seek(bool targets);

  void on_tokens(std::vector<TokenEvent>&& events) override;
  void on_report(LoadReport&& report) override;
  void send(HandoffMail&& mail) override;
  void runs_at(const RequestOrigin& origin, const Placement& placement) override;
  void left(RequestId) override {}  // only who has a request speaks of it
  void seek_targets() override { seek(true); }
  void share(const LoadReport& report) override;
  void ended() override {}  // the world finds out by itself

  const InstanceId id_;
  const NodeOptions options_;
  SimulatedModel& model_;
  NodePeers* const peers_;
  std::unique_ptr<AheadClock> clock_;
  Incarnation incarnation_{0};
  std::unique_ptr<Life> life_;
  std::vector<Command> inbox_;
  TimePoint busy_until_{};
  bool seeks_targets_ = false;  // in this life
  LoadReport last_report_;
  Totals before_;  // of former lives
};

}  // namespace sluice
