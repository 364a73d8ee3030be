// The side that a sequence is handed to:
//
//   reserved -> committed -> running -> ended
//
// A value without sockets, threads or clock, as its counterpart
// (cluster/handoff_source.h). A reservation is a lease: it ends when the source
// has been silent for `lease`, and what was not started by then is given back.
// A sequence may show its first token only while may_start() says so; from then
// on it is this instance's, whatever becomes of the source.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "cluster/handoff_messages.h"
#include "cluster/handoff_stats.h"

namespace sluice {

// What the target needs of its instance. Calls return at once, and do not call
// the target in turn.
class TargetHost {
 public:
  virtual ~TargetHost() = default;
  // Takes memory for the sequence, which does not run yet; or says why not.
  [[nodiscard]] virtual std::variant<Granted, Refused> reserve(const ReserveAsk& ask,
                                                               TimePoint now) = 0;
  // What was reserved runs from its next step on. An error: it cannot, and stays reserved.
  [[nodiscard]] virtual Status start(const Commit& commit) = 0;
  // Gives back what it holds, running or not; nothing is said to its client.
  virtual void drop(HandoffKey key) = 0;
  // It runs, and nobody wants it any more: it ends with its event, and ended() follows.
  virtual void cancel_running(RequestId request) = 0;
  virtual void send(const Placement& to, HandoffMessage message) = 0;
};

class HandoffTarget final {
 public:
  explicit HandoffTarget(Duration lease) : lease_(lease) {}

  void on_message(const Placement& from, HandoffMessage message, TimePoint now, TargetHost& host);
  // The sequence may take a step that shows its first token.
  [[nodiscard]] bool may_start(RequestId request, TimePoint now) const;
  // Its first token is out. Null: it did not come by a handoff, or said so before.
  std::optional<HandoffKey> started(RequestId request, TimePoint now, TargetHost& host);
  // Its last event is out.
  void ended(RequestId request, TimePoint now, TargetHost& host);
  // The instance cannot keep what was reserved.
  void revoke(RequestId request, TargetHost& host);
  void peer_gone(InstanceId instance, Incarnation up_to, TargetHost& host);
  void tick(TimePoint now, TargetHost& host);

  [[nodiscard]] TimePoint next_tick() const;
  // Attempts that led here, for the next handoff of the same request.
  [[nodiscard]] std::uint32_t attempts(RequestId request) const;
  [[nodiscard]] bool knows(RequestId request) const { return in_.contains(request); }
  // It may be handed on: no source thinks of it any more.
  [[nodiscard]] bool settled(RequestId request) const;
  // It was handed on.
  void left(RequestId request) { in_.erase(request); }
  // Reserved or committed, not started.
  [[nodiscard]] std::int64_t reservations() const;
  [[nodiscard]] bool idle() const { return in_.empty(); }
  [[nodiscard]] std::int64_t taken() const { return taken_; }
  [[nodiscard]] std::int64_t expired() const { return expired_; }
  // All that the source may still think of, by request.
  [[nodiscard]] std::vector<OpenHandoff> open() const;
  // Equal values behave equally, whatever they have counted.
  friend bool operator==(const HandoffTarget& a, const HandoffTarget& b) { return a.in_ == b.in_; }

 private:
  using State = ArrivalStage;
  struct Incoming {
    HandoffKey key;
    Placement source;
    State state = State::kReserved;
    Granted answer;         // said again when asked again
    bool released = false;  // the source has let go
    TimePoint expires{};    // of the lease, until it runs
    TimePoint said{};       // Taken, the last time
    TimePoint running_since{};
    friend bool operator==(const Incoming&, const Incoming&) = default;
  };

  void on_ask(const Placement& from, ReserveAsk&& ask, TimePoint now, TargetHost& host);
  void on_abort(Incoming& in, const Abort& abort, TimePoint now, TargetHost& host);
  void say_taken(Incoming& in, TimePoint now, TargetHost& host);
  void give_back(Incoming& in, TargetHost& host);
  [[nodiscard]] static bool holds_only(const Incoming& in) {
    return in.state == State::kReserved || in.state == State::kCommitted;
  }
  [[nodiscard]] TimePoint due(const Incoming& in) const;

  Duration lease_;
  std::map<RequestId, Incoming> in_;
  std::int64_t taken_ = 0;
  std::int64_t expired_ = 0;
};

}  // namespace sluice
