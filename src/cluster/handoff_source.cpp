#include "cluster/handoff_source.h"

#include <algorithm>
#include <utility>

namespace sluice {
namespace {

constexpr Duration kRememberMoved = std::chrono::seconds(30);
// While it waits for one target's time, it looks for another so often.
constexpr Duration kLook = std::chrono::milliseconds(100);

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

HandoffSource::Outgoing* HandoffSource::find(HandoffKey key) {
  const auto it = out_.find(key.request);
  return it != out_.end() && it->second.key == key ? &it->second : nullptr;
}

void HandoffSource::enter(Outgoing& out, State state, TimePoint now) {
  stats_.stages[static_cast<std::size_t>(out.state)].observe(to_seconds(now - out.since));
  out.state = state;
  out.since = now;
}

void HandoffSource::finish(RequestId request, HandoffOutcome outcome, TimePoint now) {
  const auto it = out_.find(request);
  enter(it->second, it->second.state, now);
  ++stats_.outcomes[it->second.carrier.name][static_cast<std::size_t>(outcome)];
  out_.erase(it);
}

// --- Placing and reserving -------------------------------------------------------

void HandoffSource::begin(const HandoffKey& last, TimePoint now, SourceHost& host) {
  const auto [it, added] = out_.try_emplace(last.request);
  if (!added) return;
  Outgoing& out = it->second;
  out.key = last;
  out.began = out.since = now;
  place(out, now, host);
}

// Asks the next target; where none is left that may be asked now, waits for one, but no
// longer than patience lasts.
void HandoffSource::place(Outgoing& out, TimePoint now, SourceHost& host) {
  if (out.state != State::kPlacing) enter(out, State::kPlacing, now);
  out.granted.reset();
  const RequestId request = out.key.request;
  if (now - out.began >= options_.patience) {
    return finish(request, HandoffOutcome::kStayed, now);
  }
  std::erase_if(out.not_before, [now](const auto& entry) { return entry.second <= now; });
  TargetChoice choice;
  const bool rests = out.tries >= options_.max_tries;
  if (!rests) {
    std::set<InstanceId> refused = out.never;
    for (const auto& [instance, until] : out.not_before) refused.insert(instance);
    choice = host.choose(request, refused, now);
  }
  if (!choice.target) {
    out.tries = 0;
    // What those say who have refused is worth more than what the scheduler expects of them.
    Duration wait = choice.look_again;
    if (!rests && !out.not_before.empty()) {
      wait = std::max(wait, kLook);
      for (const auto& [instance, until] : out.not_before) wait = std::min(wait, until - now);
    }
    out.deadline = now + std::max(wait, options_.least_wait);
    return;
  }
  ++out.tries;
  ++out.key.attempt;
  out.target = *choice.target;
  std::optional<ReserveAsk> ask = host.describe(out.key);
  if (!ask) return finish(request, HandoffOutcome::kEnded, now);
  enter(out, State::kReserving, now);
  out.deadline = now + options_.reserve_timeout;
  out.beat = now;
  host.send(out.target, std::move(*ask));
}

// The sequence runs here, whatever it was doing; the next target's turn.
void HandoffSource::give_up_target(Outgoing& out, bool tell, Duration wait, TimePoint now,
                                   SourceHost& host) {
  if (out.state == State::kSending || out.state == State::kClosing) host.cancel_transfer(out.key);
  if (tell) host.send(out.target, Abort{out.key});
  out.not_before[out.target.instance] =
      now + std::clamp(wait, options_.least_wait, std::max(options_.least_wait, options_.patience));
  if (out.commit) {
    out.commit.reset();
    host.resume(out.key.request);
  }
  place(out, now, host);
}

void HandoffSource::lost(Outgoing& out, TimePoint now, SourceHost& host) {
  ++stats_.targets_lost;
  if (!out.cancelled) return give_up_target(out, /*tell=*/true, {}, now, host);
  // Nobody wants it any more, and who had it cannot start it any more.
  const RequestId request = out.key.request;
  host.end_cancelled(request);
  finish(request, HandoffOutcome::kCancelled, now);
}

void HandoffSource::on_granted(Outgoing& out, Granted&& granted, TimePoint now, SourceHost& host) {
  if (out.state != State::kReserving) return;  // said twice
  enter(out, State::kSending, now);
  out.deadline = now + options_.send_timeout;
  out.echo = granted.stamp;
  out.heard = now;
  out.granted = std::move(granted);
  host.start_transfer(out.target, *out.granted, /*last=*/false);
}

void HandoffSource::on_refused(Outgoing& out, Refused&& refused, TimePoint now, SourceHost& host) {
  if (out.state != State::kReserving) return;
  if (refused.kind == RefusalKind::kNever) {
    ++stats_.never;
    out.never.insert(out.target.instance);
  } else {
    ++stats_.not_before;
  }
  give_up_target(out, /*tell=*/false, refused.after, now, host);
}

// --- Sending and committing ------------------------------------------------------

void HandoffSource::sent(HandoffKey key, bool ok, std::string_view transport, TimePoint now,
                         SourceHost& host) {
  Outgoing* out = find(key);
  if (out == nullptr || (out->state != State::kSending && out->state != State::kClosing)) return;
  if (!transport.empty()) out->carrier.name = transport;
  if (!ok) {
    ++stats_.targets_lost;
    return give_up_target(*out, /*tell=*/true, {}, now, host);
  }
  if (out->state == State::kSending) {
    out->commit = host.detach(key, out->granted->room_tokens);
    if (!out->commit) return give_up_target(*out, /*tell=*/true, {}, now, host);
    enter(*out, State::kClosing, now);
    return host.start_transfer(out->target, *out->granted, /*last=*/true);
  }
  enter(*out, State::kCommitting, now);
  out->commit->echo = out->echo;
  out->beat = now;
  host.send(out->target, *out->commit);
}

void HandoffSource::on_taken(const Placement& from, const Taken& taken, TimePoint now,
                             SourceHost& host) {
  const auto it = out_.find(taken.key.request);
  if (it == out_.end()) {
    const auto moved = moved_.find(taken.key.request);
    // Somebody else has it: this one was given up, and started all the same.
    const bool other = moved != moved_.end() && moved->second.key != taken.key;
    if (other && !taken.finished) {
      host.send(from, Abort{.key = taken.key, .superseded = true});
    } else {
      host.send(from, Released{taken.key});
    }
    return;
  }
  Outgoing& out = it->second;
  const HandoffKey key = out.key;
  if (taken.key.life != key.life) {  // its gateway has given that life up
    if (taken.finished) return host.send(from, Released{taken.key});
    return host.send(from, Abort{.key = taken.key, .superseded = true});
  }
  // Who has shown a token has it, also one that was given up too early.
  if (key != taken.key && out.state != State::kPlacing) {
    if (out.state == State::kSending || out.state == State::kClosing) host.cancel_transfer(key);
    host.send(out.target, Abort{key});
  }
  const bool cancelled = out.cancelled;
  host.release(key.request);
  host.runs_at(key.request, from);
  host.send(from, Released{taken.key});
  moved_[key.request] = {taken.key, from, now};
  finish(key.request, HandoffOutcome::kMoved, now);
  if (cancelled) host.send(from, Abort{.key = taken.key, .cancel = true});
}

void HandoffSource::on_message(const Placement& from, HandoffMessage message, TimePoint now,
                               SourceHost& host) {
  const HandoffKey key = key_of(message);
  if (const auto* taken = std::get_if<Taken>(&message)) return on_taken(from, *taken, now, host);
  Outgoing* out = find(key);
  if (out == nullptr || out->state == State::kPlacing || out->target != from) {
    // A reservation that nobody waits for; unless it is late and the sequence has gone there.
    const auto moved = moved_.find(key.request);
    const bool gone_there = moved != moved_.end() && moved->second.key == key;
    const bool held =
        std::holds_alternative<Granted>(message) || std::holds_alternative<Alive>(message);
    if (held && !gone_there) host.send(from, Abort{key});
    return;
  }
  std::visit(Overloaded{
                 [&](Granted& m) { on_granted(*out, std::move(m), now, host); },
                 [&](Refused& m) { on_refused(*out, std::move(m), now, host); },
                 [&](Alive& m) {
                   if (m.stamp <= out->echo) return;
                   out->echo = m.stamp;
                   out->heard = now;
                 },
                 [&](Lost&) { lost(*out, now, host); }, [](auto&) {},  // a target's words
             },
             message);
}

// --- Ends ------------------------------------------------------------------------

void HandoffSource::ended(RequestId request, SourceHost& host) {
  const auto it = out_.find(request);
  if (it == out_.end() || it->second.commit) return;
  Outgoing& out = it->second;
  if (out.state == State::kSending) host.cancel_transfer(out.key);
  if (out.state != State::kPlacing) host.send(out.target, Abort{out.key});
  finish(request, HandoffOutcome::kEnded, out.since);
}

bool HandoffSource::cancel(RequestId request, SourceHost& host) {
  const auto it = out_.find(request);
  if (it == out_.end()) {
    const auto moved = moved_.find(request);
    if (moved == moved_.end()) return false;
    host.send(moved->second.target, Abort{.key = moved->second.key, .cancel = true});
    return true;
  }
  Outgoing& out = it->second;
  if (!out.commit) return false;  // it runs here; ended() follows
  host.send(out.target, Abort{.key = out.key, .cancel = true});
  if (out.state == State::kCommitting) {
    out.cancelled = true;  // it may have started: the answer says who ends it
    return true;
  }
  host.cancel_transfer(out.key);
  host.end_cancelled(request);
  finish(request, HandoffOutcome::kCancelled, out.since);
  return true;
}

void HandoffSource::peer_gone(InstanceId instance, Incarnation up_to, TimePoint now,
                              SourceHost& host) {
  std::erase_if(moved_, [&](const auto& entry) {
    const Placement& target = entry.second.target;
    return target.instance == instance && target.incarnation <= up_to;
  });
  std::vector<RequestId> hit;
  for (const auto& [request, out] : out_) {
    const bool there = out.target.instance == instance && out.target.incarnation <= up_to;
    if (there && out.state != State::kPlacing) hit.push_back(request);
  }
  for (const RequestId request : hit) lost(out_.at(request), now, host);
}

std::vector<OpenHandoff> HandoffSource::open() const {
  std::vector<OpenHandoff> all;
  for (const auto& [request, out] : out_) {
    all.push_back({request, static_cast<std::uint8_t>(out.state), out.target});
  }
  return all;
}

// --- Time ------------------------------------------------------------------------

TimePoint HandoffSource::due(const Outgoing& out) const {
  switch (out.state) {
    case State::kPlacing:
    case State::kReserving: return out.deadline;
    case State::kSending:
    case State::kClosing: return std::min(out.deadline, out.beat + options_.lease / 3);
    case State::kCommitting:
      return std::min(out.heard + options_.lease, out.beat + options_.lease / 3);
  }
  return out.deadline;
}

TimePoint HandoffSource::next_tick() const {
  TimePoint next = TimePoint::max();
  for (const auto& [request, out] : out_) next = std::min(next, due(out));
  return next;
}

void HandoffSource::keep_alive(Outgoing& out, TimePoint now, SourceHost& host) {
  if (now - out.beat < options_.lease / 3) return;
  out.beat = now;
  if (out.state == State::kCommitting) {  // it may have been lost
    out.commit->echo = out.echo;
    host.send(out.target, *out.commit);
  }
  host.send(out.target, Beat{out.key, out.echo});
}

void HandoffSource::tick(TimePoint now, SourceHost& host) {
  std::erase_if(moved_, [&](const auto& entry) { return now - entry.second.at >= kRememberMoved; });
  std::vector<RequestId> late;
  for (const auto& [request, out] : out_) {
    if (now >= due(out)) late.push_back(request);
  }
  for (const RequestId request : late) {
    Outgoing& out = out_.at(request);
    switch (out.state) {
      case State::kPlacing: place(out, now, host); break;
      case State::kReserving: lost(out, now, host); break;
      case State::kSending:
      case State::kClosing:
        if (now >= out.deadline) {
          lost(out, now, host);
        } else {
          keep_alive(out, now, host);
        }
        break;
      case State::kCommitting:
        if (now >= out.heard + options_.lease) {
          lost(out, now, host);
        } else {
          keep_alive(out, now, host);
        }
        break;
    }
  }
}

}  // namespace sluice
