// An instance's part in handoffs: joins its engine, its local scheduler, its
// transfers and the two sides of the protocol.
//
// Belongs to the engine's loop, beside InstanceAgent. The owner passes in mail,
// the others' load reports and the news that one is gone; calls before_step()
// and after_step() around each step; and shows it every event before that
// leaves. What it wants said goes out through PeerPort.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "cluster/handoff_messages.h"
#include "cluster/handoff_source.h"
#include "cluster/handoff_stats.h"
#include "cluster/handoff_target.h"
#include "cluster/local_scheduler.h"
#include "engine/engine.h"
#include "transfer/kv_transfer.h"

namespace sluice {

// The way to other instances and to the global scheduler. Calls return at once.
class PeerPort {
 public:
  virtual ~PeerPort() = default;
  virtual void send(HandoffMail&& mail) = 0;
  // To the global scheduler: the request runs there now, wherever it was placed.
  virtual void runs_at(const RequestOrigin& origin, const Placement& placement) = 0;
  // Nothing more is said of the request from here: another has it, or it was given up.
  virtual void left(RequestId request) = 0;
  // Whatever its role, it has something to hand over: others' reports are wanted from now on.
  virtual void seek_targets() = 0;
  // This instance's report, to all that may hand sequences over to it.
  virtual void share(const LoadReport& report) = 0;
  // This incarnation has ended; the last call.
  virtual void ended() = 0;
};

struct HandoffAgentOptions {
  Placement self;
  Role role = Role::kUnified;
  KvIdentity kv;
  std::string memory;  // how transfers reach this instance's arena
  HandoffOptions handoff;
  bool keep_inputs = false;  // of the local scheduler's decisions
};

class HandoffAgent final : private SourceHost, private TargetHost {
 public:
  // References outlive the agent.
  HandoffAgent(HandoffAgentOptions options, Engine& engine, std::unique_ptr<PlacementPolicy> policy,
               KvTransfer& transfer, const Clock& clock, PeerPort& peers);

  void on_mail(HandoffMail mail);
  // Of another instance.
  void on_report(LoadReport report);
  void peer_gone(InstanceId instance, Incarnation up_to);
  // True: a handoff sees to it. False: it is the engine's, or not known here.
  [[nodiscard]] bool cancel(RequestId request);
  // From now on whatever runs here goes to where there is room, whatever its role.
  void leave();
  void before_step();
  void after_step();
  void on_events(std::span<const TokenEvent> events);

  // When before_step() is wanted, whether or not the engine has work.
  [[nodiscard]] TimePoint next_tick() const;
  // KV is on its way: do not sleep.
  [[nodiscard]] bool sending() const { return transfer_.busy() || !waiting_.empty(); }
  // It is on its way from here or to here: another life of it is not to begin yet.
  [[nodiscard]] bool knows(RequestId request) const {
    return source_.knows(request) || target_.knows(request);
  }
  [[nodiscard]] bool idle() const { return source_.idle() && target_.idle(); }
  [[nodiscard]] HandoffStats stats() const;
  // For who looks on.
  [[nodiscard]] const HandoffSource& source() const { return source_; }
  [[nodiscard]] const HandoffTarget& target() const { return target_; }
  [[nodiscard]] const LoadTable& loads() const { return scheduler_.loads(); }
  [[nodiscard]] std::vector<Decision> take_decisions() { return scheduler_.take_decisions(); }

 private:
  // One transfer, and what it read.
  struct Sending {
    HandoffKey key;
    bool last = false;
    std::int32_t restarts = 0;   // of the sequence when it began
    const char* transport = "";  // once it has ended
  };

  TargetChoice choose(RequestId request, const std::set<InstanceId>& refused,
                      TimePoint now) override;
  std::optional<ReserveAsk> describe(HandoffKey key) override;
  void start_transfer(const Placement& to, const Granted& granted, bool last) override;
  void cancel_transfer(HandoffKey key) override;
  std::optional<Commit> detach(HandoffKey key, std::int32_t room_tokens) override;
  void resume(RequestId request) override;
  void release(RequestId request) override;
  void runs_at(RequestId request, const Placement& target) override;
  void end_cancelled(RequestId request) override;

  std::variant<Granted, Refused> reserve(const ReserveAsk& ask, TimePoint now) override;
  Status start(const Commit& commit) override;
  void drop(HandoffKey key) override;
  void cancel_running(RequestId request) override;
  void send(const Placement& to, HandoffMessage message) override;
  void begin(const Sequence& sequence);
  void begin_new();
  void make_room();
  [[nodiscard]] bool wants_to_leave(const Sequence& sequence) const;
  void pump();
  // Whether what a transfer has read is what the sequence holds.
  [[nodiscard]] bool still_true(const Sending& sending) const;

  const HandoffAgentOptions options_;
  Engine& engine_;
  KvTransfer& transfer_;
  const Clock& clock_;
  PeerPort& peers_;

  bool leaving_ = false;
  bool seeks_ = false;                   // seek_targets() was called
  std::optional<RequestId> makes_room_;  // it leaves, so that nobody has to yield
  LocalScheduler scheduler_;
  HandoffSource source_;
  HandoffTarget target_;

  std::map<TransferTicket, Sending> sending_;
  std::vector<Sending> waiting_;                  // sent, but the prompt is not computed yet
  std::vector<std::pair<Sending, bool>> done_;    // to be told to the source; false: failed
  std::map<RequestId, std::int32_t> sent_until_;  // blocks of the table
  std::map<RequestId, RequestOrigin> going_;      // as long as the source knows them
  std::map<RequestId, RequestOrigin> coming_;     // until they run here
  std::uint64_t next_ticket_ = 1;
  TransferStats transfer_stats_;
};

}  // namespace sluice
