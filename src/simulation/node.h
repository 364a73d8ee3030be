// One simulated instance: the engine and the agent that serve, on a clock of
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
#include <vector>

#include "cluster/instance_agent.h"
#include "simulation/device.h"
#include "simulation/simulated_model.h"

namespace sluice {

struct NodeOptions {
  EngineOptions engine;
  Role role = Role::kUnified;
  Duration report_interval = std::chrono::milliseconds(20);
  Duration idle_report_interval = std::chrono::seconds(1);
};

template <class T>
struct Sent {
  TimePoint at{};   // by the sender's clock
  TimePoint due{};  // at the receiver; the world's to write
  Incarnation incarnation;
  T content;
};

class Node final : private TokenSink, private ReportSink {
 public:
  // A node that waits for its engine's memory looks again after this time.
  static constexpr Duration kRetry = std::chrono::milliseconds(2);

  // References outlive the node.
  Node(InstanceId id, NodeOptions options, SimulatedModel& model, const Clock& world);
  ~Node() override;

  void start();  // a new incarnation
  void crash();  // what it holds, and what would leave it later, is gone
  void hang_until(TimePoint until) { busy_until_ = std::max(busy_until_, until); }
  void drain();

  // Arrive in the inbox, which is read before the next step. A request for another
  // incarnation is dropped, as a receiver does.
  void submit(std::unique_ptr<Request> request, Incarnation incarnation);
  void cancel(RequestId request);

  // Computes one step if it is free and has something to do. Returns when it
  // wants to be called again; max(): only when something arrives.
  TimePoint run();

  [[nodiscard]] InstanceId id() const { return id_; }
  [[nodiscard]] bool alive() const { return life_ != nullptr; }
  [[nodiscard]] bool idle() const;  // holds no request
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

  std::deque<Sent<std::vector<TokenEvent>>> tokens;
  std::deque<Sent<LoadReport>> reports;

 private:
  class AheadClock;
  struct Life;
  struct Command {
    std::unique_ptr<Request> request;  // null: a cancel
    RequestId id;
  };
  struct Totals {
    double busy_seconds = 0;
    std::int64_t preemptions = 0;
    std::int64_t steps = 0;
  };
  [[nodiscard]] Totals totals() const;

  void on_tokens(std::vector<TokenEvent>&& events) override;
  void on_report(LoadReport&& report) override;

  const InstanceId id_;
  const NodeOptions options_;
  SimulatedModel& model_;
  std::unique_ptr<AheadClock> clock_;
  Incarnation incarnation_{0};
  std::unique_ptr<Life> life_;
  std::vector<Command> inbox_;
  TimePoint busy_until_{};
  LoadReport last_report_;
  Totals before_;  // of former lives
};

}  // namespace sluice
