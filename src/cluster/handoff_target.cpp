#include "cluster/handoff_target.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace sluice {
namespace {

// Taken is repeated for so many leases; who has not answered by then is gone.
constexpr int kLeasesToSay = 10;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

void HandoffTarget::give_back(Incoming& in, TargetHost& host) {
  const HandoffKey key = in.key;
  in_.erase(key.request);
  host.drop(key);
}

void HandoffTarget::say_taken(Incoming& in, TimePoint now, TargetHost& host) {
  in.said = now;
  host.send(in.source, Taken{in.key, in.state == State::kEnded});
}

// --- What the source says --------------------------------------------------------

void HandoffTarget::on_ask(const Placement& from, ReserveAsk&& ask, TimePoint now,
                           TargetHost& host) {
  if (const auto it = in_.find(ask.key.request); it != in_.end()) {
    Incoming& in = it->second;
    if (ask.key.life < in.key.life) return;  // its gateway has given that life up
    if (ask.key.life > in.key.life) {
      give_back(in, host);
      return on_ask(from, std::move(ask), now, host);
    }
    if (!holds_only(in)) {
      // It has the sequence of an attempt that was given up: the source learns it.
      in.source = from;
      in.released = false;
      return say_taken(in, now, host);
    }
    if (ask.key.attempt < in.key.attempt) return;  // overtaken
    if (ask.key == in.key) return host.send(from, in.answer);
    give_back(in, host);
  }
  const HandoffKey key = ask.key;
  std::variant<Granted, Refused> answer = host.reserve(ask, now);
  if (auto* refused = std::get_if<Refused>(&answer)) return host.send(from, std::move(*refused));
  Incoming& in = in_[key.request];
  in.key = key;
  in.source = from;
  in.answer = std::get<Granted>(std::move(answer));
  in.answer.stamp = now;
  in.expires = now + lease_;
  host.send(from, in.answer);
}

void HandoffTarget::on_abort(Incoming& in, const Abort& abort, TimePoint now, TargetHost& host) {
  const Placement source = in.source;
  const HandoffKey key = in.key;
  if (in.state == State::kEnded) return say_taken(in, now, host);
  if (in.released && !abort.cancel) return;  // said before the source let go
  if (in.state == State::kRunning && !abort.superseded) {
    say_taken(in, now, host);  // the source may run it as well: it hears who has it
    if (abort.cancel) host.cancel_running(key.request);
    return;
  }
  give_back(in, host);
  host.send(source, Lost{key});
}

void HandoffTarget::on_message(const Placement& from, HandoffMessage message, TimePoint now,
                               TargetHost& host) {
  if (auto* ask = std::get_if<ReserveAsk>(&message)) {
    return on_ask(from, std::move(*ask), now, host);
  }
  const HandoffKey key = key_of(message);
  const auto it = in_.find(key.request);
  if (it == in_.end() || it->second.key != key) {
    const bool wants_answer = std::holds_alternative<Beat>(message) ||
                              std::holds_alternative<Commit>(message) ||
                              std::holds_alternative<Abort>(message);
    if (wants_answer) host.send(from, Lost{key});
    return;
  }
  Incoming& in = it->second;
  const auto extend = [&](TimePoint echo) { in.expires = std::max(in.expires, echo + lease_); };
  std::visit(Overloaded{
                 [&](Beat& m) {
                   if (!holds_only(in)) return say_taken(in, now, host);
                   extend(m.echo);
                   host.send(from, Alive{key, now});
                 },
                 [&](Commit& m) {
                   if (!holds_only(in)) return say_taken(in, now, host);
                   extend(m.echo);
                   if (in.state == State::kCommitted) return;
                   if (host.start(m)) {
                     in.state = State::kCommitted;
                     return;
                   }
                   give_back(in, host);
                   host.send(from, Lost{key});
                 },
                 [&](Abort& m) { on_abort(in, m, now, host); },
                 [&](Released&) {
                   in.released = true;
                   if (in.state == State::kEnded) in_.erase(key.request);
                 },
                 [](auto&) {},  // a source's words
             },
             message);
}

// --- What the instance says ------------------------------------------------------

bool HandoffTarget::may_start(RequestId request, TimePoint now) const {
  const auto it = in_.find(request);
  if (it == in_.end()) return true;
  return !holds_only(it->second) || now < it->second.expires;
}

std::optional<HandoffKey> HandoffTarget::started(RequestId request, TimePoint now,
                                                 TargetHost& host) {
  const auto it = in_.find(request);
  if (it == in_.end() || it->second.state != State::kCommitted) return std::nullopt;
  it->second.state = State::kRunning;
  it->second.running_since = now;
  ++taken_;
  say_taken(it->second, now, host);
  return it->second.key;
}

void HandoffTarget::ended(RequestId request, TimePoint now, TargetHost& host) {
  const auto it = in_.find(request);
  if (it == in_.end() || holds_only(it->second)) return;
  it->second.state = State::kEnded;
  if (it->second.released) {
    in_.erase(it);
  } else {
    say_taken(it->second, now, host);
  }
}

void HandoffTarget::revoke(RequestId request, TargetHost& host) {
  const auto it = in_.find(request);
  if (it == in_.end() || !holds_only(it->second)) return;
  const Placement source = it->second.source;
  const HandoffKey key = it->second.key;
  give_back(it->second, host);
  host.send(source, Lost{key});
}

void HandoffTarget::peer_gone(InstanceId instance, Incarnation up_to, TargetHost& host) {
  std::vector<RequestId> hit;
  for (const auto& [request, in] : in_) {
    if (in.source.instance == instance && in.source.incarnation <= up_to) hit.push_back(request);
  }
  for (const RequestId request : hit) {
    Incoming& in = in_.at(request);
    if (holds_only(in)) {
      give_back(in, host);
    } else if (in.state == State::kEnded) {
      in_.erase(request);
    } else {
      in.released = true;
    }
  }
}

std::vector<OpenHandoff> HandoffTarget::open() const {
  std::vector<OpenHandoff> all;
  for (const auto& [request, in] : in_) {
    if (in.released) continue;
    all.push_back({request, static_cast<std::uint8_t>(in.state), in.source});
  }
  return all;
}

// --- Time ------------------------------------------------------------------------

TimePoint HandoffTarget::due(const Incoming& in) const {
  if (holds_only(in)) return in.expires;
  return in.released ? TimePoint::max() : in.said + lease_ / 3;
}

TimePoint HandoffTarget::next_tick() const {
  TimePoint next = TimePoint::max();
  for (const auto& [request, in] : in_) next = std::min(next, due(in));
  return next;
}

void HandoffTarget::tick(TimePoint now, TargetHost& host) {
  std::vector<RequestId> late;
  for (const auto& [request, in] : in_) {
    if (now >= due(in)) late.push_back(request);
  }
  for (const RequestId request : late) {
    Incoming& in = in_.at(request);
    if (holds_only(in)) {
      ++expired_;
      give_back(in, host);
    } else if (now - in.running_since >= kLeasesToSay * lease_) {
      in.released = true;
      if (in.state == State::kEnded) in_.erase(request);
    } else {
      say_taken(in, now, host);
    }
  }
}

std::uint32_t HandoffTarget::attempts(RequestId request) const {
  const auto it = in_.find(request);
  return it == in_.end() ? 0 : it->second.key.attempt;
}

bool HandoffTarget::settled(RequestId request) const {
  const auto it = in_.find(request);
  return it == in_.end() || it->second.released;
}

std::int64_t HandoffTarget::reservations() const {
  return std::count_if(in_.begin(), in_.end(),
                       [](const auto& entry) { return holds_only(entry.second); });
}

}  // namespace sluice
