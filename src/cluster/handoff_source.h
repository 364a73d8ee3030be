// The side that hands a running sequence over:
//
//   placing -> reserving -> sending -> committing -> done
//
// A value without sockets, threads or clock: the owner passes messages and the
// time in, and a host that acts for it. Until the Commit is out the sequence
// runs on here as any other, so that a refusal, a loss or a slow transfer costs
// it nothing; from then on it rests here with its KV until the target's first
// token. If the target dies first, it runs here again and another target is
// asked, without a second prefill. Where no target will have it, it stays.
//
// When may it give a committed target up? A target starts only within `lease` of
// the newest stamp that the source has sent back; the source waits that long
// from the moment it heard that stamp, which is later. So no two start.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "cluster/handoff_messages.h"
#include "cluster/handoff_options.h"
#include "cluster/handoff_stats.h"

namespace sluice {

// Who to ask, or when to look again.
struct TargetChoice {
  std::optional<Placement> target;
  Duration look_again{};
};

// What the source needs of its instance. Calls return at once, and do not call
// the source in turn.
class SourceHost {
 public:
  virtual ~SourceHost() = default;
  // The local scheduler: the best target that is not among `refused`.
  [[nodiscard]] virtual TargetChoice choose(RequestId request, const std::set<InstanceId>& refused,
                                            TimePoint now) = 0;
  // Describes the sequence; nullopt: it does not run here any more.
  [[nodiscard]] virtual std::optional<ReserveAsk> describe(HandoffKey key) = 0;
  virtual void send(const Placement& to, HandoffMessage message) = 0;
  // Sends what KV there is, or (`last`) what has come since; the sequence rests by
  // then. Answered by sent(), not before this returns.
  virtual void start_transfer(const Placement& to, const Granted& granted, bool last) = 0;
  virtual void cancel_transfer(HandoffKey key) = 0;
  // The sequence rests from here on, its KV stays. nullopt: it does not run here
  // any more, or holds more than `room_tokens`.
  [[nodiscard]] virtual std::optional<Commit> detach(HandoffKey key, std::int32_t room_tokens) = 0;
  // What rested runs here again.
  virtual void resume(RequestId request) = 0;
  // It is not this instance's any more: what it holds is free, nothing is said.
  virtual void release(RequestId request) = 0;
  // It runs there. The target says so too, but may be lost before it is heard.
  virtual void runs_at(RequestId request, const Placement& target) = 0;
  // What rested ends, cancelled.
  virtual void end_cancelled(RequestId request) = 0;
};

class HandoffSource final {
 public:
  explicit HandoffSource(HandoffOptions options) : options_(options) {}

  // The sequence may leave. `last`: of the attempts that were made for it elsewhere.
  void begin(const HandoffKey& last, TimePoint now, SourceHost& host);
  void on_message(const Placement& from, HandoffMessage message, TimePoint now, SourceHost& host);
  // The transfer that was started last for this key has ended; "" never began.
  void sent(HandoffKey key, bool ok, std::string_view transport, TimePoint now, SourceHost& host);
  // It ended here by itself, or was cancelled while it ran here.
  void ended(RequestId request, SourceHost& host);
  // True: the handoff sees to it. False: it runs here or is not known.
  [[nodiscard]] bool cancel(RequestId request, SourceHost& host);
  void peer_gone(InstanceId instance, Incarnation up_to, TimePoint now, SourceHost& host);
  void tick(TimePoint now, SourceHost& host);

  [[nodiscard]] bool knows(RequestId request) const { return out_.contains(request); }
  // When tick() is wanted next; TimePoint::max(): not before something happens.
  [[nodiscard]] TimePoint next_tick() const;
  [[nodiscard]] bool idle() const { return out_.empty(); }
  [[nodiscard]] std::size_t size() const { return out_.size(); }
  [[nodiscard]] const SourceStats& stats() const { return stats_; }
  // All that are under way, by request.
  [[nodiscard]] std::vector<OpenHandoff> open() const;
  // Equal values behave equally, whatever they have counted.
  friend bool operator==(const HandoffSource& a, const HandoffSource& b) {
    return a.out_ == b.out_ && a.moved_ == b.moved_;
  }

 private:
  using State = HandoffStage;
  // What carried KV last. For the counts alone: nothing depends on it.
  struct Carrier {
    std::string name = kNoTransport;
    friend bool operator==(const Carrier&, const Carrier&) { return true; }
  };
  struct Outgoing {
    HandoffKey key;
    State state = State::kPlacing;
    Placement target;
    std::optional<Granted> granted;
    std::optional<Commit> commit;                // while it rests
    std::map<InstanceId, TimePoint> not_before;  // who is not asked again until then
    std::set<InstanceId> never;
    std::int32_t tries = 0;  // since it last waited
    bool cancelled = false;  // the client left while it was committing
    Carrier carrier;
    TimePoint began{};
    TimePoint since{};     // of the state
    TimePoint deadline{};  // of the state
    TimePoint echo{};      // newest stamp of the target,
    TimePoint heard{};     // and when it came
    TimePoint beat{};      // last thing said to it
    friend bool operator==(const Outgoing&, const Outgoing&) = default;
  };
  // Gone, and where to: for cancels that are still on their way here.
  struct Moved {
    HandoffKey key;
    Placement target;
    TimePoint at{};
    friend bool operator==(const Moved&, const Moved&) = default;
  };

  void place(Outgoing& out, TimePoint now, SourceHost& host);
  void enter(Outgoing& out, State state, TimePoint now);
  void give_up_target(Outgoing& out, bool tell, Duration wait, TimePoint now, SourceHost& host);
  void lost(Outgoing& out, TimePoint now, SourceHost& host);
  void stay(Outgoing& out, HandoffOutcome outcome, TimePoint now);
  void on_granted(Outgoing& out, Granted&& granted, TimePoint now, SourceHost& host);
  void on_refused(Outgoing& out, Refused&& refused, TimePoint now, SourceHost& host);
  void on_taken(const Placement& from, const Taken& taken, TimePoint now, SourceHost& host);
  void keep_alive(Outgoing& out, TimePoint now, SourceHost& host);
  void finish(RequestId request, HandoffOutcome outcome, TimePoint now);
  [[nodiscard]] Outgoing* find(HandoffKey key);
  [[nodiscard]] TimePoint due(const Outgoing& out) const;

  HandoffOptions options_;
  std::map<RequestId, Outgoing> out_;
  std::map<RequestId, Moved> moved_;
  SourceStats stats_;
};

}  // namespace sluice
