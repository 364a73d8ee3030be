#include "cluster/global_scheduler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "scheduling/decision_inputs.h"

namespace sluice {
namespace {

Error error_of(ErrorCode code, std::string message, std::int32_t retry_after_s = 0) {
  return {code, std::move(message), retry_after_s};
}

Error never_fits_error(const Decision& d) {
  return error_of(
      ErrorCode::kNeverFits,
      fmt::format(
          "{} prompt tokens and {} to generate need {} KV blocks; the largest instance has {}",
          d.prompt_tokens, d.max_new_tokens, d.needed_blocks, d.largest_blocks));
}

}  // namespace

GlobalScheduler::GlobalScheduler(GlobalSchedulerOptions options,
                                 std::unique_ptr<PlacementPolicy> policy, InstancePort& instances,
                                 TokenSink& sink, const Clock& clock)
    : options_(options),
      policy_(std::move(policy)),
      instances_(instances),
      sink_(sink),
      clock_(clock) {
  CHECK(policy_ != nullptr);
}

// --- What instances say ----------------------------------------------------------

void GlobalScheduler::on_report(LoadReport report, TimePoint now) {
  const InstanceId instance = report.instance;
  const Incarnation incarnation = report.incarnation;
  const std::vector<RequestId> seen = std::move(report.seen);
  switch (table_.update(std::move(report), now)) {
    case ReportOutcome::kInvalid: return;
    case ReportOutcome::kOld: {
      // Overtaken by a later one, which counted these requests already.
      const LoadRow* row = table_.find(instance);
      if (row == nullptr || row->incarnation != incarnation) return;
      break;
    }
    case ReportOutcome::kRestarted:
      ledger_.forget(instance);
      CHECK_GT(incarnation.value, 0U);
      lose_placed_on(instance, Incarnation{incarnation.value - 1},
                     error_of(ErrorCode::kUnavailable,
                              fmt::format("instance {} was restarted", instance.value)),
                     now);
      break;
    case ReportOutcome::kApplied: break;
  }
  for (const RequestId request : seen) ledger_.remove(request);
  serve_queue(now);
}

void GlobalScheduler::runs_at(RequestId request, std::int32_t attempt, const Placement& placement,
                              TimePoint now) {
  const auto it = placed_.find(request);
  if (it == placed_.end() || it->second.request.attempt != attempt) {
    // Unless its newer attempt is at the same place: there a cancel would meet that one.
    if (it == placed_.end() || it->second.placement != placement) {
      instances_.cancel(placement, request);
    }
    return;
  }
  it->second.placement = placement;
  it->second.moved = true;
  ledger_.remove(request);
  if (it->second.cancelled) instances_.cancel(placement, request);
  const LoadRow* row = table_.find(placement.instance);
  if (row != nullptr && row->incarnation <= placement.incarnation) return;
  // It was told of before it went, and is heard of after.
  instance_gone(placement.instance, placement.incarnation,
                error_of(ErrorCode::kUnavailable,
                         fmt::format("instance {} is gone", placement.instance.value)),
                now);
}

void GlobalScheduler::instance_gone(InstanceId instance, Incarnation incarnation,
                                    const Error& error, TimePoint now) {
  const LoadRow* row = table_.find(instance);
  if (row != nullptr && row->incarnation <= incarnation) {
    table_.remove(instance);
    ledger_.forget(instance);
  }
  lose_placed_on(instance, incarnation, error, now);
  serve_queue(now);
}

// --- Answers ---------------------------------------------------------------------

void GlobalScheduler::on_tokens(std::vector<TokenEvent>&& events, TimePoint now) {
  std::vector<Queued> lost;
  std::vector<TokenEvent> out;
  out.reserve(events.size());
  for (TokenEvent& event : events) take(std::move(event), out, lost, now);
  const bool ended = std::ranges::any_of(
      out, [](const TokenEvent& event) { return event.finish != FinishReason::kNone; });
  const bool room = ended || !lost.empty();
  if (!out.empty()) sink_.on_tokens(std::move(out));
  retry(std::move(lost), now);
  if (room) serve_queue(now);
}

// Puts into `out` what the client may see now: with it come those that waited for it.
void GlobalScheduler::take(TokenEvent&& event, std::vector<TokenEvent>& out,
                           std::vector<Queued>& lost, TimePoint now) {
  const RequestId request = event.request;
  auto it = placed_.find(request);
  if (it == placed_.end() || event.attempt != it->second.request.attempt) return;
  const bool failed =
      event.finish == FinishReason::kError || event.finish == FinishReason::kCancelled;
  if (it->second.moved && !failed && event.index > std::ssize(it->second.request.output)) {
    std::vector<TokenEvent>& early = it->second.early;
    if (early.empty()) it->second.early_since = now;
    gaps_.insert(request);
    const auto after = std::ranges::upper_bound(early, event.index, {}, &TokenEvent::index);
    early.insert(after, std::move(event));
    return;
  }
  if (admit(it, event, lost, now)) out.push_back(std::move(event));
  if (!gaps_.contains(request)) return;
  for (it = placed_.find(request); it != placed_.end(); it = placed_.find(request)) {
    std::vector<TokenEvent>& early = it->second.early;
    if (early.empty() || early.front().index > std::ssize(it->second.request.output)) return;
    TokenEvent next = std::move(early.front());
    early.erase(early.begin());
    it->second.early_since = now;
    if (admit(it, next, lost, now)) out.push_back(std::move(next));
  }
}

// True if the event is the client's to see.
bool GlobalScheduler::admit(PlacedAt it, TokenEvent& event, std::vector<Queued>& lost,
                            TimePoint now) {
  Placed& placed = it->second;
  std::vector<Token>& output = placed.request.output;
  if (event.has_token) {
    // A handoff may show a token twice: who showed it first has it.
    if (event.index < std::ssize(output)) return false;
    if (event.index == std::ssize(output)) {
      output.push_back(event.token.token);
    } else {
      event.has_token = false;
      event.finish = FinishReason::kError;
      event.error =
          error_of(ErrorCode::kInternal,
                   fmt::format("instance {} sent token {} where {} was due",
                               placed.placement.instance.value, event.index, output.size()));
      instances_.cancel(placed.placement, event.request);
    }
  }
  if (event.finish == FinishReason::kNone) return true;
  if (event.finish == FinishReason::kCancelled && !placed.cancelled) {
    // Whoever handed it over has lost its way to us and took it for given up.
    event.finish = FinishReason::kError;
    event.error = error_of(ErrorCode::kUnavailable,
                           fmt::format("instance {} cancelled what was not to be cancelled",
                                       placed.placement.instance.value));
  }
  const bool instance_failed =
      event.finish == FinishReason::kError && !placed.cancelled &&
      (event.error.code == ErrorCode::kUnavailable || event.error.code == ErrorCode::kTransport ||
       event.error.code == ErrorCode::kBusy);
  if (instance_failed) {
    table_.hold(placed.placement.instance);
    lost.push_back({.request = std::make_unique<Request>(std::move(placed.request)),
                    .since = now,
                    .lost = event.error});
  }
  placed_.erase(it);
  ledger_.remove(event.request);
  return !instance_failed;
}

// Whoever had the tokens that are missing is gone, and they with it.
void GlobalScheduler::give_gaps_up(TimePoint now) {
  std::vector<Queued> lost;
  std::erase_if(gaps_, [&](RequestId request) {
    const auto it = placed_.find(request);
    if (it == placed_.end() || it->second.early.empty()) return true;
    Placed& placed = it->second;
    if (now - placed.early_since < options_.gap_limit) return false;
    instances_.cancel(placed.placement, request);
    Error error = error_of(ErrorCode::kUnavailable,
                           fmt::format("token {} was lost when the request was handed over",
                                       placed.request.output.size()));
    if (placed.cancelled) {
      end(placed.request, FinishReason::kCancelled, {}, now);
    } else {
      lost.push_back({.request = std::make_unique<Request>(std::move(placed.request)),
                      .since = now,
                      .lost = std::move(error)});
    }
    ledger_.remove(request);
    placed_.erase(it);
    return true;
  });
  retry(std::move(lost), now);
}

void GlobalScheduler::lose_placed_on(InstanceId instance, Incarnation up_to, const Error& error,
                                     TimePoint now) {
  std::vector<Queued> lost;
  for (auto it = placed_.begin(); it != placed_.end();) {
    Placed& placed = it->second;
    if (placed.placement.instance != instance || placed.placement.incarnation > up_to) {
      ++it;
      continue;
    }
    if (placed.cancelled) {
      end(placed.request, FinishReason::kCancelled, {}, now);
    } else {
      lost.push_back({.request = std::make_unique<Request>(std::move(placed.request)),
                      .since = now,
                      .lost = error});
    }
    ledger_.remove(it->first);
    it = placed_.erase(it);
  }
  retry(std::move(lost), now);
}

// In front of the queue, in their own order: their clients have waited already.
void GlobalScheduler::retry(std::vector<Queued> lost, TimePoint now) {
  for (auto it = lost.rbegin(); it != lost.rend(); ++it) {
    if (!retrying_ || it->request->attempt + 1 >= options_.max_attempts) {
      end(*it->request, FinishReason::kError, *it->lost, now);
      continue;
    }
    it->request->attempt += 1;
    it->prefix = prefix_hashes(it->request->prompt);
    retries_ += 1;
    queue_.push_front(std::move(*it));
  }
  if (!lost.empty()) end_lost(now);
}

// Requests that lost their instance do not wait long where no instance is left.
void GlobalScheduler::end_lost(TimePoint now) {
  const auto too_late = [&](const Queued& q) {
    return q.lost && now - q.since >= options_.retry_wait;
  };
  if (queue_.empty() || !too_late(queue_.front()) || !table_.instances().empty()) return;
  std::vector<Queued> ended;
  while (!queue_.empty() && too_late(queue_.front())) {
    ended.push_back(std::move(queue_.front()));
    queue_.pop_front();
  }
  for (const Queued& q : ended) end(*q.request, FinishReason::kError, *q.lost, now);
}

// Alive perhaps, but it makes no steps: its requests cannot wait for it.
void GlobalScheduler::abandon_silent(TimePoint now) {
  if (options_.silence_limit == Duration::max()) return;
  std::vector<Placement> silent;
  for (const LoadRow& row : table_.rows()) {
    if (row.present && now - row.received_at >= options_.silence_limit) {
      silent.push_back({row.instance, row.incarnation});
    }
  }
  for (const Placement& p : silent) {
    instances_.abandon(p);
    instance_gone(p.instance, p.incarnation,
                  error_of(ErrorCode::kUnavailable,
                           fmt::format("instance {} did not report for {} s", p.instance.value,
                                       std::llround(to_seconds(options_.silence_limit)))),
                  now);
  }
}

// --- What clients want -----------------------------------------------------------

void GlobalScheduler::submit(std::unique_ptr<Request> request, TimePoint now) {
  if (draining_) {
    return end(
        *request, FinishReason::kError,
        error_of(ErrorCode::kUnavailable, "the server is draining and takes no new requests"), now);
  }
  if (request->prompt.empty() || request->max_tokens < 1) {
    return end(*request, FinishReason::kError,
               error_of(ErrorCode::kInvalidArgument,
                        fmt::format("a request needs at least 1 prompt token and 1 token to "
                                    "generate; this one has {} and {}",
                                    request->prompt.size(), request->max_tokens)),
               now);
  }
  Queued queued{std::move(request), now, {}};
  queued.prefix = prefix_hashes(queued.request->prompt);
  // Nothing overtakes the queue; but what can never fit learns it at once.
  const auto largest = table_.largest(Role::kPrefill);
  const auto tokens =
      static_cast<std::int64_t>(queued.request->prompt.size()) + queued.request->max_tokens;
  const bool never = largest && tokens > largest->tokens;
  if (queue_.empty() || never) {
    if (try_place(queued, now) != Attempt::kWait) return;
  }
  enqueue(std::move(queued), now);
}

void GlobalScheduler::enqueue(Queued queued, TimePoint now) {
  if (std::ssize(queue_) < options_.queue_limit) {
    queue_.push_back(std::move(queued));
    return;
  }
  end(*queued.request, FinishReason::kError,
      error_of(ErrorCode::kBusy,
               fmt::format("{} requests wait for an instance already (limit {})", queue_.size(),
                           options_.queue_limit),
               retry_after_s()),
      now);
}

void GlobalScheduler::cancel(RequestId request, TimePoint now) {
  if (const auto it = placed_.find(request); it != placed_.end()) {
    it->second.cancelled = true;
    instances_.cancel(it->second.placement, request);  // its last event comes from there
    return;
  }
  const auto it = std::find_if(queue_.begin(), queue_.end(),
                               [&](const Queued& q) { return q.request->id == request; });
  if (it == queue_.end()) return;
  const std::unique_ptr<Request> gone = std::move(it->request);
  queue_.erase(it);
  end(*gone, FinishReason::kCancelled, {}, now);
  serve_queue(now);
}

void GlobalScheduler::tick(TimePoint now) {
  ledger_.expire(now);
  abandon_silent(now);
  give_gaps_up(now);
  end_lost(now);
  // The queue is in the order of arrival, so those that waited longest are in front.
  while (!queue_.empty() && now - queue_.front().since >= options_.queue_timeout) {
    const Queued late = std::move(queue_.front());
    queue_.pop_front();
    end(*late.request, FinishReason::kError,
        error_of(ErrorCode::kDeadlineExceeded,
                 fmt::format("no instance had room for {} s (limit {} s)",
                             std::llround(to_seconds(now - late.since)),
                             std::llround(to_seconds(options_.queue_timeout)))),
        now);
  }
  serve_queue(now);
}

void GlobalScheduler::fail_queued(const Error& error, TimePoint now) {
  while (!queue_.empty()) {
    const Queued queued = std::move(queue_.front());
    queue_.pop_front();
    end(*queued.request, FinishReason::kError, error, now);
  }
}

void GlobalScheduler::end(const Request& request, FinishReason finish, Error error, TimePoint now) {
  std::vector<TokenEvent> events(1);
  events[0].request = request.id;
  events[0].attempt = request.attempt;
  events[0].index = static_cast<std::int32_t>(request.output.size());
  events[0].finish = finish;
  events[0].queued = now - request.arrival;
  events[0].error = std::move(error);
  sink_.on_tokens(std::move(events));
}

// --- Placement -------------------------------------------------------------------

void GlobalScheduler::serve_queue(TimePoint now) {
  while (!queue_.empty()) {
    const Attempt attempt = try_place(queue_.front(), now);
    if (attempt == Attempt::kWait) return;
    if (attempt == Attempt::kPlaced) {
      constexpr double kWeight = 0.1;
      constexpr double kLongestGap = 60;  // an idle hour says nothing about the next gap
      const double gap = std::min(kLongestGap, to_seconds(now - last_dequeue_));
      dequeue_gap_s_ += kWeight * (gap - dequeue_gap_s_);
      last_dequeue_ = now;
    }
    queue_.pop_front();
  }
}

GlobalScheduler::Attempt GlobalScheduler::try_place(Queued& queued, TimePoint now) {
  const std::vector<std::uint64_t>& prefix = queued.prefix;
  const PlacementQuery query = query_for(*queued.request, prefix, now);
  const TimePoint begin = clock_.now();
  const PlacementPolicy::State before = policy_->state();
  Decision decision = policy_->place(query, table_);
  const bool for_record = decision.placement || !queued.recorded;
  if (options_.keep_inputs && for_record) {
    decision.inputs = inputs_of(decision, query, table_, before);
  }
  placement_seconds_.observe(to_seconds(clock_.now() - begin));

  switch (decision.outcome) {
    case PlacementOutcome::kNeverFits:
      end(*queued.request, FinishReason::kError, never_fits_error(decision), now);
      record(std::move(decision));
      return Attempt::kRefused;
    case PlacementOutcome::kPlaced:
    case PlacementOutcome::kPlacedRelaxed: {
      Request copy = *queued.request;
      if (instances_.submit(*decision.placement, queued.request)) {
        placed_[copy.id] = {*decision.placement, std::move(copy), false};
        commit(decision, query, prefix, now);
        record(std::move(decision));
        return Attempt::kPlaced;
      }
      decision.outcome = PlacementOutcome::kNoneEligible;  // its inbox is full
      decision.placement.reset();
      decision.expected_wait = std::chrono::seconds(1);
      break;
    }
    case PlacementOutcome::kNoneEligible: break;
  }
  head_wait_ = decision.expected_wait;
  if (!std::exchange(queued.recorded, true)) record(std::move(decision));
  return Attempt::kWait;
}

PlacementQuery GlobalScheduler::query_for(const Request& request,
                                          const std::vector<std::uint64_t>& prefix,
                                          TimePoint now) const {
  return {.request = request.id,
          .role = Role::kPrefill,
          .prompt_tokens = static_cast<std::int32_t>(request.prompt.size() + request.output.size()),
          .max_new_tokens = request.max_tokens - static_cast<std::int32_t>(request.output.size()),
          .cached = prefixes_.find(prefix, table_),
          .now = now};
}

void GlobalScheduler::commit(const Decision& decision, const PlacementQuery& query,
                             const std::vector<std::uint64_t>& prefix, TimePoint now) {
  const Placement& placement = *decision.placement;
  std::int32_t cached = 0;
  for (const CachedPrefix& c : query.cached) {
    if (c.instance == placement.instance) cached = c.tokens;
  }
  const LoadRow& row = *table_.find(placement.instance);
  const std::int32_t output = std::min(query.max_new_tokens, row.output_quantiles[1]);
  if (options_.ledger) {
    ledger_.add(query.request, placement.instance, std::max(1, query.prompt_tokens - cached),
                row.blocks_for(std::int64_t{query.prompt_tokens} + output), now);
  }
  prefixes_.insert(prefix, placement.instance, placement.incarnation);
}

void GlobalScheduler::record(Decision decision) {
  outcomes_[static_cast<std::size_t>(decision.outcome)] += 1;
  note(std::move(decision));
}

void GlobalScheduler::note(Decision decision) {
  decisions_.push_back(std::move(decision));
  if (decisions_.size() > kMaxDecisions) decisions_.pop_front();
}

// When the head may find room, and the time that those in front then take.
std::int32_t GlobalScheduler::retry_after_s() const {
  const double ahead = dequeue_gap_s_ * static_cast<double>(queue_.size());
  const double seconds = std::ceil(to_seconds(head_wait_) + ahead);
  return static_cast<std::int32_t>(std::clamp(seconds, 1.0, 600.0));
}

ClusterSnapshot GlobalScheduler::snapshot(TimePoint now) const {
  ClusterSnapshot snapshot;
  snapshot.at = now;
  for (const InstanceId id : table_.instances()) {
    InstanceSnapshot& instance = snapshot.instances.emplace_back();
    instance.report = *table_.report(id);
    instance.ledger_tokens = ledger_.load(id).tokens;
    instance.report_age = now - table_.find(id)->received_at;
  }
  snapshot.decisions.assign(decisions_.begin(), decisions_.end());
  snapshot.queued_requests = static_cast<std::int32_t>(queue_.size());
  snapshot.queue_limit = options_.queue_limit;
  snapshot.draining = draining_;
  for (std::size_t i = 0; i < outcomes_.size(); ++i) {
    snapshot.placements.push_back(
        {policy_->name(), outcome_name(static_cast<PlacementOutcome>(i)), outcomes_[i]});
  }
  snapshot.retries = retries_;
  snapshot.placement_seconds = placement_seconds_;
  snapshot.placement_seconds_sum = placement_seconds_.sum;
  for (const std::int64_t count : placement_seconds_.counts) snapshot.placement_count += count;
  return snapshot;
}

}  // namespace sluice
