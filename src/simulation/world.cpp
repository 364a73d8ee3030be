#include "simulation/world.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "simulation/world_link.h"

namespace sluice {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr std::size_t kMostViolations = 100;
// Instances have reported before the first request comes.
constexpr Duration kStartUp = std::chrono::seconds(2);

std::int32_t most_tokens(const WorldOptions& options, const Trace& trace) {
  if (options.max_tokens > 0) return options.max_tokens;
  return std::bit_ceil(static_cast<std::uint32_t>(trace.longest_output()));
}

}  // namespace

World::World(WorldOptions options, const Trace& trace, SimulatedModel& model)
    : options_(std::move(options)),
      trace_(trace),
      max_tokens_(most_tokens(options_, trace)),
      rng_(options_.seed * 0x2545f4914f6cdd1dULL + 1),
      links_(options_.nodes.size()),
      followers_(trace.requests.size()),
      answers_(trace.requests.size()),
      scheduler_(options_.scheduler,
                 make_policy(options_.policy, options_.limits, Rng(options_.seed)), *this, *this,
                 clock_) {
  begin_ = TimePoint{std::chrono::hours(1)};
  clock_.set(begin_);
  if (options_.nodes.size() > 1) join_peers();
  for (std::uint32_t i = 0; i < options_.nodes.size(); ++i) {
    nodes_.push_back(
        std::make_unique<Node>(InstanceId{i}, options_.nodes[i], model, clock_, peers_.get()));
    nodes_.back()->start();
    links_[i].heard_at = begin_ + options_.network.report_delay;
    // Not all in one instant, as machines do not start in one.
    wake(i, begin_ + Duration(rng_.below(20'000'000)));
  }
  begin_ += kStartUp + options_.network.report_delay;
  for (std::uint32_t i = 0; i < trace.requests.size(); ++i) {
    const std::int32_t leader = trace.requests[i].after;
    if (leader >= 0) followers_[static_cast<std::size_t>(leader)].push_back(i);
  }
  queue_.push(begin_, Kind::kTick, 0);
  if (options_.sample_interval > Duration::zero()) queue_.push(begin_, Kind::kSample, 0);
  for (std::uint32_t i = 0; i < options_.faults.size(); ++i) {
    CHECK_LT(options_.faults[i].instance, nodes_.size());
    queue_.push(begin_ + options_.faults[i].at, Kind::kFault, i);
  }
  while (next_arrival_ < trace.requests.size() && trace.requests[next_arrival_].after >= 0) {
    ++next_arrival_;
  }
  if (next_arrival_ < trace.requests.size()) {
    queue_.push(begin_ + trace.requests[next_arrival_].arrival, Kind::kArrival,
                static_cast<std::uint32_t>(next_arrival_));
  }
}

World::~World() = default;

void World::join_peers() {
  if (options_.decode.by != DecodeChooser::kLocal) {
    central_ = std::make_unique<CentralDecode>(
        make_policy(options_.decode.policy, options_.limits, Rng(options_.seed + 1)),
        [this](RequestId id) { return trace_.prompt(static_cast<std::uint32_t>(id.value - 1)); });
  }
  peers_ = std::make_unique<NodePeers>(NodePeers{
      .fabric = KvFabric(options_.nodes.size()),
      .handoff = options_.handoff,
      .network = options_.network,
      .make_policy = [this](Placement self) {
        const Rng rng(options_.seed + 1 + self.instance.value + (self.incarnation.value << 32U));
        if (central_) return central_->make_policy();
        return make_policy(options_.decode.policy, options_.limits, rng);
      }});
}

// --- The loop --------------------------------------------------------------------

bool World::run(const std::function<void(double)>& progress) {
  constexpr std::uint64_t kProgressEvents = 1U << 14U;
  const TimePoint limit = begin_ + options_.time_limit;
  while (ended_ < answers_.size()) {
    if (queue_.next().at > limit) return false;
    next();
    if (progress && queue_.count() % kProgressEvents == 0) {
      progress(static_cast<double>(ended_) / static_cast<double>(answers_.size()));
    }
  }
  return true;
}

void World::run_for(Duration time) {
  const TimePoint until = clock_.now() + time;
  while (queue_.next().at <= until) next();
  clock_.set(until);
}

void World::next() {
  const Queue::Event event = queue_.pop();
  clock_.set(event.at);
  handle(event);
}

void World::handle(const Queue::Event& event) {
  const std::uint32_t subject = event.subject;
  switch (event.kind) {
    case Kind::kArrival: return arrive(subject);
    case Kind::kLeave: return leave(subject);
    case Kind::kCommand: return deliver_command(subject);
    case Kind::kWake:
      if (event.at == links_[subject].wake_at) run_node(subject);  // else: called earlier since
      return;
    case Kind::kWords: return deliver_words(subject);
    case Kind::kReport: return deliver_report(subject);
    case Kind::kShared: return deliver_shared(subject);
    case Kind::kMail: return deliver_mail(subject);
    case Kind::kTick: return tick();
    case Kind::kSample: return sample();
    case Kind::kFault: return strike(options_.faults[subject]);
    case Kind::kRestart: return restart(subject);
  }
}

// --- Clients ---------------------------------------------------------------------

void World::arrive(std::uint32_t index) {
  const TraceRequest& wanted = trace_.requests[index];
  if (wanted.after < 0) {  // the next of those that follow nobody
    do {
      ++next_arrival_;
    } while (next_arrival_ < answers_.size() && trace_.requests[next_arrival_].after >= 0);
    if (next_arrival_ < answers_.size()) {
      queue_.push(begin_ + trace_.requests[next_arrival_].arrival, Kind::kArrival,
                  static_cast<std::uint32_t>(next_arrival_));
    }
  }
  const TimePoint now = clock_.now();
  answers_[index].arrival = now;
  if (wanted.cancel_after > Duration::zero()) {
    queue_.push(now + wanted.cancel_after, Kind::kLeave, index);
  }
  auto request = std::make_unique<Request>();
  request->id = RequestId{std::uint64_t{index} + 1};
  request->prompt = trace_.prompt(index);
  request->max_tokens = wanted.max_tokens > 0 ? wanted.max_tokens : max_tokens_;
  request->priority = wanted.priority;
  request->sampling.seed = index;
  if (options_.true_lengths) request->sampling.forced_length = wanted.output_tokens;
  request->arrival = now;
  scheduler_.submit(std::move(request), now);
}

void World::leave(std::uint32_t index) {
  if (answers_[index].finish != FinishReason::kNone) return;
  scheduler_.cancel(RequestId{std::uint64_t{index} + 1}, clock_.now());
}

void World::receive(const TokenEvent& event) {
  const auto index = static_cast<std::size_t>(event.request.value - 1);
  Answer& answer = answers_[index];
  if (answer.finish != FinishReason::kNone) {
    return violate(event.request,
                   event.finish == FinishReason::kNone ? "a token after its end" : "a second end");
  }
  const TimePoint now = clock_.now();
  if (answer.tokens == 0) {
    answer.first = now;
    answer.cached = event.cached_tokens;
  }
  if (event.has_token) {
    if (event.index != answer.tokens) violate(event.request, "a gap in its indices");
    if (options_.keep_tokens) answer.content.push_back(event.token.token);
  }
  if (answer.tokens == 1) answer.second = now;
  if (answer.tokens > 0) {
    gaps_.add(now - answer.last);
    answer.longest_gap = std::max(answer.longest_gap, now - answer.last);
  }
  answer.tokens += event.has_token || event.finish == FinishReason::kStop ? 1 : 0;
  answer.last = now;
  queue_.note(event.request.value ^ static_cast<std::uint64_t>(event.token.token) << 32);
  if (event.finish == FinishReason::kNone) return;
  answer.finish = event.finish;
  answer.error = event.error.code;
  if (options_.keep_tokens) answer.message = event.error.message;
  if (central_) central_->forget(event.request);
  ++ended_;
  for (const std::uint32_t follower : followers_[index]) {
    queue_.push(now + trace_.requests[follower].arrival, Kind::kArrival, follower);
  }
}

void World::violate(RequestId request, const char* what) {
  if (violations_.size() == kMostViolations) return;
  violations_.push_back(fmt::format("request {}: {}", request.value, what));
}

// --- The scheduler's side ----------------------------------------------------------

bool World::submit(const Placement& placement, std::unique_ptr<Request>& request) {
  answers_[request->id.value - 1].instance = placement.instance;
  if (options_.decode.by == DecodeChooser::kAtPlacement && central_) {
    central_->choose_early(*request, clock_.now());
  }
  post_command(placement.instance.value, std::move(request), placement.incarnation);
  return true;
}

void World::cancel(const Placement& placement, RequestId request) {
  post_command(placement.instance.value, request, placement.incarnation);
}

// What the scheduler says: the instances' events, and refusals.
void World::on_tokens(std::vector<TokenEvent>&& events) {
  for (const TokenEvent& event : events) receive(event);
}

void World::tick() {
  const TimePoint now = clock_.now();
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    Link& link = links_[i];
    const Incarnation incarnation = nodes_[i]->incarnation();
    if (now - link.heard_at <= options_.gone_after || link.gone >= incarnation) continue;
    link.gone = incarnation;
    scheduler_.instance_gone(InstanceId{i}, incarnation,
                             {ErrorCode::kUnavailable, "the instance is not heard of", 0}, now);
    tell_peers({InstanceId{i}, incarnation});
    if (central_) central_->instance_gone(InstanceId{i}, incarnation);
  }
  scheduler_.tick(now);
  if (central_) central_->tick(now);
  queue_.push(now + kTick, Kind::kTick, 0);
}

void World::sample() {
  LoadSample& s = samples_.emplace_back();
  s.at = clock_.now();
  for (const auto& node : nodes_) {
    const LoadReport& r = node->last_report();
    s.kv_share.push_back(r.total_blocks == 0 ? 0.0F
                                             : static_cast<float>(r.granted_blocks) /
                                                   static_cast<float>(r.total_blocks));
    s.kv_tokens.push_back(static_cast<std::int32_t>(r.context_tokens));
    s.running.push_back(r.running_sequences);
    s.waiting.push_back(r.waiting_requests);
  }
  queue_.push(clock_.now() + options_.sample_interval, Kind::kSample, 0);
}

}  // namespace sluice
