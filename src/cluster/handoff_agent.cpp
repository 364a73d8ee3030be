#include "cluster/handoff_agent.h"

#include <algorithm>
#include <utility>

namespace sluice {

HandoffAgent::HandoffAgent(HandoffAgentOptions options, Engine& engine,
                           std::unique_ptr<PlacementPolicy> policy, KvTransfer& transfer,
                           const Clock& clock, PeerPort& peers)
    : options_(std::move(options)),
      engine_(engine),
      transfer_(transfer),
      clock_(clock),
      peers_(peers),
      scheduler_(options_.self.instance, std::move(policy), options_.keep_inputs),
      source_(options_.handoff),
      target_(options_.handoff.lease) {}

// --- What comes in ---------------------------------------------------------------

void HandoffAgent::on_mail(HandoffMail mail) {
  if (mail.to != options_.self) return;  // to another incarnation
  const TimePoint now = clock_.now();
  const HandoffMessage& m = mail.message;
  const bool to_source = std::holds_alternative<Granted>(m) || std::holds_alternative<Refused>(m) ||
                         std::holds_alternative<Alive>(m) || std::holds_alternative<Taken>(m) ||
                         std::holds_alternative<Lost>(m);
  if (to_source) {
    source_.on_message(mail.from, std::move(mail.message), now, *this);
  } else {
    target_.on_message(mail.from, std::move(mail.message), now, *this);
  }
  pump();
}

void HandoffAgent::on_report(LoadReport report) {
  const InstanceId instance = report.instance;
  const Incarnation incarnation = report.incarnation;
  if (scheduler_.on_report(std::move(report), clock_.now()) != ReportOutcome::kRestarted) return;
  const Incarnation before{incarnation.value - 1};
  source_.peer_gone(instance, before, clock_.now(), *this);
  target_.peer_gone(instance, before, *this);
}

void HandoffAgent::peer_gone(InstanceId instance, Incarnation up_to) {
  scheduler_.instance_gone(instance, up_to);
  source_.peer_gone(instance, up_to, clock_.now(), *this);
  target_.peer_gone(instance, up_to, *this);
}

bool HandoffAgent::cancel(RequestId request) {
  const Sequence* sequence = engine_.find(request);
  if (sequence != nullptr && sequence->here()) return false;
  return source_.cancel(request, *this);
}

void HandoffAgent::leave() {
  leaving_ = true;
  if (!std::exchange(seeks_, true)) peers_.seek_targets();
}

void HandoffAgent::on_events(std::span<const TokenEvent> events) {
  const TimePoint now = clock_.now();
  for (const TokenEvent& event : events) {
    if (target_.started(event.request, now, *this)) {
      // Its first event: the engine may have forgotten it, if that is its last.
      const auto it = coming_.find(event.request);
      peers_.runs_at(it->second, options_.self);
      coming_.erase(it);
    }
    if (event.finish == FinishReason::kNone) continue;
    target_.ended(event.request, now, *this);
    source_.ended(event.request, *this);
  }
}

// --- Around a step ---------------------------------------------------------------

void HandoffAgent::before_step() {
  const TimePoint now = clock_.now();
  source_.tick(now, *this);
  target_.tick(now, *this);
  scheduler_.tick(now);
  pump();
}

void HandoffAgent::after_step() {
  for (const RequestId request : engine_.take_revoked()) target_.revoke(request, *this);
  if (options_.role == Role::kPrefill || leaving_) {
    begin_new();
  } else {
    make_room();
  }
  pump();
  const auto gone = [this](const auto& entry) { return !source_.knows(entry.first); };
  std::erase_if(sent_until_, gone);
  std::erase_if(going_, gone);
}

void HandoffAgent::begin(const Sequence& sequence) {
  const Request& wanted = *sequence.request;
  going_[wanted.id] = origin_of(wanted);
  source_.begin({wanted.id, target_.attempts(wanted.id), wanted.attempt}, clock_.now(), *this);
}

void HandoffAgent::begin_new() {
  for (const RequestId request : engine_.may_leave()) {
    const Sequence& sequence = *engine_.find(request);
    if (!source_.knows(request) && wants_to_leave(sequence)) begin(sequence);
  }
}

// Before memory is short: who would have to yield goes to where there is room, if somebody
// says so, and the others never notice. One at a time.
void HandoffAgent::make_room() {
  if (makes_room_ && source_.knows(*makes_room_)) return;
  makes_room_ = engine_.next_to_yield();
  if (!makes_room_) return;
  if (!std::exchange(seeks_, true)) peers_.seek_targets();
  const Sequence& sequence = *engine_.find(*makes_room_);
  const bool known = !scheduler_.loads().instances().empty();
  const bool worthwhile = sequence.left_to_generate() >= options_.handoff.least_left_tokens;
  if (known && worthwhile && target_.settled(*makes_room_)) begin(sequence);
}

bool HandoffAgent::wants_to_leave(const Sequence& sequence) const {
  if (!target_.settled(sequence.request->id)) return false;  // it has hardly arrived
  if (leaving_) return true;
  // Those that have decoded here for a while were tried, and stay.
  const auto before = static_cast<std::int32_t>(sequence.request->output.size());
  return sequence.generated() - before <= 1 &&
         sequence.left_to_generate() >= options_.handoff.least_left_tokens;
}

TimePoint HandoffAgent::next_tick() const {
  return std::min(source_.next_tick(), target_.next_tick());
}

HandoffStats HandoffAgent::stats() const {
  return {.source = source_.stats(),
          .transfer = transfer_stats_,
          .leaving = static_cast<std::int64_t>(source_.size()),
          .reservations = target_.reservations(),
          .taken = target_.taken(),
          .expired = target_.expired()};
}

// --- As a source -----------------------------------------------------------------

TargetChoice HandoffAgent::choose(RequestId request, const std::set<InstanceId>& refused,
                                  TimePoint now) {
  const Sequence* sequence = engine_.find(request);
  if (sequence == nullptr) return {std::nullopt, Duration::zero()};
  const Decision decision = scheduler_.choose({.request = request,
                                               .prompt = sequence->request->prompt,
                                               .known_tokens = sequence->known(),
                                               .left_tokens = sequence->left_to_generate(),
                                               .refused = &refused},
                                              now);
  return {decision.placement, decision.expected_wait};
}

std::optional<ReserveAsk> HandoffAgent::describe(HandoffKey key) {
  const Sequence* sequence = engine_.find(key.request);
  if (sequence == nullptr || !sequence->here()) return std::nullopt;
  ReserveAsk ask;
  ask.key = key;
  ask.request = *sequence->request;
  ask.generated.assign(sequence->tokens.begin() + sequence->prompt_tokens, sequence->tokens.end());
  // All it can hold in the end is one token less than it can know.
  ask.room_tokens = std::min(sequence->known() - 1 + options_.handoff.spare_tokens,
                             sequence->prompt_tokens + sequence->request->max_tokens - 1);
  ask.kv = options_.kv;
  return ask;
}

void HandoffAgent::start_transfer(const Placement& to, const Granted& granted, bool last) {
  const RequestId request = granted.key.request;
  const Sequence* sequence = engine_.find(request);
  Sending sending{.key = granted.key, .last = last};
  const auto block = options_.kv.layout.block_tokens;
  const std::int32_t first = granted.held_tokens / block;
  const std::int32_t room = options_.kv.layout.blocks_for(granted.room_tokens);
  const bool sane = granted.held_tokens >= 0 && granted.held_tokens % block == 0 &&
                    std::max(room - first, 0) == static_cast<std::int32_t>(granted.blocks.size());
  if (sequence == nullptr || !sane) {
    done_.emplace_back(sending, false);
    return;
  }
  sending.restarts = sequence->restarts;
  const std::span<const BlockId> table = engine_.table(request);
  const std::int32_t begin = last ? sent_until_[request] : first;
  // What is full does not change any more; the rest goes when the sequence rests.
  const std::int32_t full = std::min(sequence->computed, granted.room_tokens) / block;
  const std::int32_t end = last ? options_.kv.layout.blocks_for(sequence->computed) : full;
  std::vector<BlockMove> moves;
  for (std::int32_t i = begin; i < end; ++i) {
    moves.push_back(
        {table[static_cast<std::size_t>(i)], granted.blocks[static_cast<std::size_t>(i - first)]});
  }
  sent_until_[request] = std::max(begin, end);
  if (!last) transfer_stats_.blocks_held += first;
  const TransferTicket ticket{next_ticket_++};
  const TransferTarget target{to.instance, to.incarnation, granted.key, granted.memory};
  if (transfer_.start(ticket, target, std::move(moves))) {
    sending_.emplace(ticket, sending);
  } else {
    done_.emplace_back(sending, false);
  }
}

void HandoffAgent::cancel_transfer(HandoffKey key) {
  for (const auto& [ticket, sending] : sending_) {
    if (sending.key == key) transfer_.cancel(ticket);
  }
  std::erase_if(waiting_, [key](const Sending& s) { return s.key == key; });
}

bool HandoffAgent::still_true(const Sending& sending) const {
  const Sequence* sequence = engine_.find(sending.key.request);
  return sequence != nullptr && sequence->restarts == sending.restarts;
}

// Tells the source what has ended; each answer may begin something new.
void HandoffAgent::pump() {
  std::vector<TransferDone> ended;
  for (bool more = true; more;) {
    ended.clear();
    transfer_.poll(ended);
    for (const TransferDone& done : ended) {
      Sending sending = sending_.at(done.ticket);
      sending_.erase(done.ticket);
      sending.transport = done.transport;
      transfer_stats_.bytes[done.transport] += done.bytes;
      if (done.outcome == TransferOutcome::kCancelled) continue;
      const bool ok = done.outcome == TransferOutcome::kDone && still_true(sending);
      if (ok && !sending.last) {
        waiting_.push_back(sending);
      } else {
        done_.emplace_back(sending, ok);
      }
    }
    // Only what has been prefilled can go on elsewhere.
    std::erase_if(waiting_, [this](const Sending& sending) {
      const Sequence* sequence = engine_.find(sending.key.request);
      const bool there = sequence != nullptr && still_true(sending);
      if (there && !sequence->decoding()) return false;
      done_.emplace_back(sending, there);
      return true;
    });
    std::vector<std::pair<Sending, bool>> told = std::exchange(done_, {});
    more = !told.empty();
    for (const auto& [sending, ok] : told) {
      if (!ok) ++transfer_stats_.failed;
      source_.sent(sending.key, ok, sending.transport, clock_.now(), *this);
    }
  }
}

std::optional<Commit> HandoffAgent::detach(HandoffKey key, std::int32_t room_tokens) {
  const Sequence* sequence = engine_.find(key.request);
  if (sequence == nullptr || sequence->computed > room_tokens || !engine_.rest(key.request)) {
    return std::nullopt;
  }
  Commit commit;
  commit.key = key;
  commit.generated.assign(sequence->tokens.begin() + sequence->prompt_tokens,
                          sequence->tokens.end());
  commit.kv_tokens = sequence->computed;
  commit.cached_tokens = sequence->cached_tokens;
  commit.announced = sequence->announced;
  return commit;
}

void HandoffAgent::resume(RequestId request) {
  engine_.wake(request);
  peers_.runs_at(going_.at(request), options_.self);
}

// The ledger keeps it until a report has seen it there: reports may be old.
void HandoffAgent::release(RequestId request) {
  sent_until_.erase(request);
  target_.left(request);
  if (makes_room_ == request) {
    engine_.drop_for_room(request);
  } else {
    engine_.drop(request);
  }
  peers_.left(request);
}

void HandoffAgent::runs_at(RequestId request, const Placement& target) {
  peers_.runs_at(going_.at(request), target);
}

void HandoffAgent::end_cancelled(RequestId request) {
  sent_until_.erase(request);
  scheduler_.forget(request);
  engine_.end_resting(request);
}

// --- As a target -----------------------------------------------------------------

std::variant<Granted, Refused> HandoffAgent::reserve(const ReserveAsk& ask, TimePoint) {
  const auto never = [&ask](Error error) {
    return Refused{ask.key, RefusalKind::kNever, {}, std::move(error)};
  };
  if (options_.role == Role::kPrefill) {
    return never({ErrorCode::kUnavailable, "a prefill instance decodes only its own", 0});
  }
  if (ask.kv != options_.kv) {
    return never({ErrorCode::kInvalidArgument, "its KV is of another model or layout", 0});
  }
  auto arrival = engine_.reserve({.request = std::make_unique<Request>(ask.request),
                                  .generated = ask.generated,
                                  .room_tokens = ask.room_tokens});
  if (!arrival) {
    ArrivalRefusal& no = arrival.error();
    const RefusalKind kind = no.never ? RefusalKind::kNever : RefusalKind::kNotBefore;
    return Refused{ask.key, kind, no.after, std::move(no.error)};
  }
  Granted granted;
  granted.key = ask.key;
  granted.held_tokens = arrival->held_tokens;
  granted.blocks = std::move(arrival->blocks);
  granted.room_tokens = ask.room_tokens;
  granted.memory = options_.memory;
  transfer_.expect(ask.key, granted.blocks);
  coming_[ask.key.request] = origin_of(ask.request);
  return granted;
}

Status HandoffAgent::start(const Commit& commit) {
  transfer_.close(commit.key.request);
  return engine_.start(commit.key.request, {.generated = commit.generated,
                                            .kv_tokens = commit.kv_tokens,
                                            .cached_tokens = commit.cached_tokens,
                                            .announced = commit.announced});
}

void HandoffAgent::drop(HandoffKey key) {
  transfer_.close(key.request);
  engine_.drop(key.request);
  coming_.erase(key.request);
  peers_.left(key.request);
}

void HandoffAgent::cancel_running(RequestId request) {
  engine_.cancel(request);  // its event follows with the next step
}

void HandoffAgent::send(const Placement& to, HandoffMessage message) {
  peers_.send({options_.self, to, std::move(message)});
}

}  // namespace sluice
