// The thread that owns one engine: its sequences, its memory, its device.
//
// Requests come in by a bounded inbox; token events and reports go to an outlet:
// the scheduler loop of the same process, or the links to gateways in others. If
// the loop has to end by itself, it says so once, last of all. Internal to net/.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include "base/inbox.h"
#include "cluster/handoff_agent.h"
#include "cluster/instance_agent.h"
#include "engine/engine.h"
#include "net/busy_share.h"
#include "net/device_gauge.h"
#include "transfer/peer_transfer.h"

namespace sluice {

// What an instance needs to take part in handoffs.
struct HandoffParts {
  HandoffAgentOptions options;
  std::unique_ptr<PlacementPolicy> policy;  // of its local scheduler
  std::unique_ptr<KvTransfer> transfer;
  std::shared_ptr<PeerPort> peers;
  PeerTransfer* pieces = nullptr;  // `transfer`, where KV comes and goes in pieces
};

// What an engine's loop has to say. Called on that loop; moves values on and returns.
class EngineOutlet {
 public:
  virtual ~EngineOutlet() = default;
  // Null: as before.
  virtual void on_report(LoadReport&& report, std::shared_ptr<const EngineStats> stats,
                         std::shared_ptr<const HandoffReport> handoffs) = 0;
  virtual void on_tokens(std::vector<TokenEvent>&& events) = 0;
  // The last call: the loop has ended.
  virtual void on_end(InstanceId instance, Incarnation incarnation, const Error& error) = 0;
};

class EngineLoop final : private ReportSink, private TokenSink {
 public:
  EngineLoop(const InstanceAgentOptions& options, const EngineOptions& engine,
             std::unique_ptr<ModelRunner> runner, std::unique_ptr<HostKv> host,
             const SamplerFactory& samplers, const Clock& clock, EngineOutlet& outlet,
             std::size_t inbox_capacity);
  ~EngineLoop() override;
  EngineLoop(const EngineLoop&) = delete;
  EngineLoop& operator=(const EngineLoop&) = delete;

  // Before start(): it takes part in handoffs.
  void join(HandoffParts parts);
  // Before start(): what tells of its device; null: nobody does.
  void watch(std::shared_ptr<const DeviceGauge> device) { device_ = std::move(device); }
  void start();
  // Ends all requests with kUnavailable and joins.
  void stop();

  // Any thread. False: full, or the loop has ended; `request` is then untouched.
  [[nodiscard]] bool submit(std::unique_ptr<Request>& request);
  void cancel(RequestId request);
  // From now on reports say that no request is wanted.
  void drain();
  // From other instances, and of them.
  void deliver(HandoffMail&& mail) { inbox_.push_urgent(std::move(mail)); }
  void hear(LoadReport report) { inbox_.push_urgent(std::move(report)); }
  void peer_gone(const Placement& peer) { inbox_.push_urgent(PeerGone{peer}); }
  // KV pieces and their receipts; and what was on its way there is lost.
  void deliver(const KvPeer& from, KvMessage&& message) {
    inbox_.push_urgent(KvMail{from, std::move(message)});
  }
  void way_lost(const KvPeer& peer) { inbox_.push_urgent(WayLost{peer}); }
  // A transfer has something to say.
  void look() { inbox_.push_urgent(Look{}); }

  // After stop(): Engine::learned_lengths().
  [[nodiscard]] std::string learned_lengths() const { return engine_.learned_lengths(); }

 private:
  struct PeerGone {
    Placement peer;
  };
  struct KvMail {
    KvPeer from;
    KvMessage message;
  };
  struct WayLost {
    KvPeer peer;
  };
  struct Look {};
  struct Drain {};
  struct Stop {};
  using Command = std::variant<std::unique_ptr<Request>, RequestId, HandoffMail, KvMail, LoadReport,
                               PeerGone, WayLost, Look, Drain, Stop>;

  void run();
  void serve();
  void handle(Command& command);
  [[nodiscard]] Duration sleep_time() const;
  void end_all(const Error& error);
  void refuse(const Request& request, const Error& error);
  void on_report(LoadReport&& report) override;
  void on_tokens(std::vector<TokenEvent>&& events) override;
  [[nodiscard]] DeviceState device_state() const;

  const InstanceAgentOptions options_;
  const Clock& clock_;
  EngineOutlet& outlet_;
  Inbox<Command> inbox_;

  // Of the loop's thread.
  std::unique_ptr<ModelRunner> runner_;
  std::unique_ptr<HostKv> host_;  // or null
  Engine engine_;
  InstanceAgent agent_;
  HandoffParts parts_;
  std::unique_ptr<HandoffAgent> handoff_;  // null: no part in handoffs
  std::vector<Command> commands_;
  bool stopping_ = false;
  TimePoint stats_sent_at_{};
  std::shared_ptr<const DeviceGauge> device_;  // or null
  BusyShare busy_;

  std::thread thread_;
};

}  // namespace sluice
