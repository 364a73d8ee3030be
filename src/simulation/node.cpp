#include "simulation/node.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

// The world's time, and how far the step that is being computed is ahead of it.
class Node::AheadClock final : public Clock {
 public:
  explicit AheadClock(const Clock& world) : world_(world) {}
  [[nodiscard]] TimePoint now() const override { return world_.now() + ahead; }
  Duration ahead{};

 private:
  const Clock& world_;
};

namespace {

// Time passes while a step is computed.
class TimedRunner final : public ModelRunner {
 public:
  TimedRunner(std::unique_ptr<ModelRunner> runner, Duration& ahead)
      : runner_(std::move(runner)), ahead_(ahead) {}
  void bind(const KvView& kv) override { runner_->bind(kv); }
  Result<StepOutput> run(const StepInput& input) override {
    auto output = runner_->run(input);
    if (output) ahead_ += output->duration;
    return output;
  }

 private:
  const std::unique_ptr<ModelRunner> runner_;
  Duration& ahead_;
};

}  // namespace

struct Node::Life {
  Life(Node& node, TokenSink& tokens, ReportSink& reports, PeerPort& port)
      : runner(node.model_.make_runner(node.id_.value), node.clock_->ahead),
        engine(engine_options(node), runner, node.model_.samplers(), *node.clock_, tokens),
        agent({.instance = node.id_,
               .incarnation = node.incarnation_,
               .role = node.options_.role,
               .block_tokens = node.options_.engine.kv.window.block_tokens,
               .max_running = node.options_.engine.max_running,
               .step_token_budget = node.options_.engine.batch.max_step_tokens,
               .min_interval = node.options_.report_interval,
               .max_interval = node.options_.idle_report_interval},
              engine, *node.clock_, reports) {
    if (node.peers_ != nullptr) join(node, port);
  }
  static EngineOptions engine_options(const Node& node) {
    EngineOptions options = node.options_.engine;
    options.hands_over = node.options_.role == Role::kPrefill;
    return options;
  }
  void join(Node& node, PeerPort& port) {
    NodePeers& peers = *node.peers_;
    const Placement self{node.id_, node.incarnation_};
    const std::int32_t block_tokens = node.options_.engine.kv.window.block_tokens;
    transfer = std::make_unique<SimulatedTransfer>(
        SimulatedTransferOptions{.self = self,
                                 .block_bytes = node.options_.kv_token_bytes * block_tokens,
                                 .bytes_per_s = peers.network.kv_bytes_per_s,
                                 .latency = peers.network.latency},
        *node.clock_, peers.fabric, node.model_);
    handoff = std::make_unique<HandoffAgent>(
        HandoffAgentOptions{.self = self,
                            .role = node.options_.role,
                            .kv = {.model = 0, .layout = {.block_tokens = block_tokens}},
                            .memory = "",
                            .handoff = peers.handoff},
        engine, peers.make_policy(self), *transfer, *node.clock_, port);
  }
  // When it wants to go on though nothing arrives.
  [[nodiscard]] TimePoint next() const {
    const TimePoint report = agent.next_report();
    return handoff ? std::min({report, handoff->next_tick(), transfer->next_end()}) : report;
  }

  TimedRunner runner;
  Engine engine;
  InstanceAgent agent;
  std::unique_ptr<SimulatedTransfer> transfer;  // both or none
  std::unique_ptr<HandoffAgent> handoff;
};

HandoffCounts& HandoffCounts::operator+=(const HandoffCounts& other) {
  moved += other.moved;
  stayed += other.stayed;
  other_ends += other.other_ends;
  refused += other.refused;
  lost += other.lost;
  bytes += other.bytes;
  taken += other.taken;
  expired += other.expired;
  return *this;
}

Node::Node(InstanceId id, NodeOptions options, SimulatedModel& model, const Clock& world,
           NodePeers* peers)
    : id_(id),
      options_(std::move(options)),
      model_(model),
      peers_(peers),
      clock_(std::make_unique<AheadClock>(world)) {}

Node::~Node() = default;

void Node::start() {
  crash();
  ++incarnation_.value;
  seek(peers_ != nullptr && options_.role == Role::kPrefill);
  busy_until_ = clock_->now();
  TokenSink& token_sink = *this;
  ReportSink& report_sink = *this;
  PeerPort& port = *this;
  life_ = std::make_unique<Life>(*this, token_sink, report_sink, port);
}

void Node::crash() {
  before_ = totals();
  seek(false);
  life_.reset();
  inbox_.clear();
  last_report_ = {};
  const TimePoint now = clock_->now();
  const auto forget_later = [now](auto& outbox) {
    while (!outbox.empty() && outbox.back().at > now) outbox.pop_back();
  };
  forget_later(words);
  forget_later(reports);
  forget_later(shared);
  forget_later(mail);
}

void Node::seek(bool targets) {
  if (std::exchange(seeks_targets_, targets) == targets) return;
  peers_->seeking += targets ? 1 : -1;
}

void Node::submit(std::unique_ptr<Request> request, Incarnation incarnation) {
  if (incarnation == incarnation_) push(std::move(request));
}

void Node::cancel(RequestId request) {
  push(request);
}

// As EngineLoop does.
void Node::handle(Command& command) {
  HandoffAgent* handoff = life_->handoff.get();
  if (auto* request = std::get_if<std::unique_ptr<Request>>(&command)) {
    if (handoff != nullptr && handoff->knows((*request)->id)) return refuse(**request);
    life_->agent.submit(std::move(*request));
  } else if (const auto* id = std::get_if<RequestId>(&command)) {
    if (handoff == nullptr || !handoff->cancel(*id)) life_->agent.cancel(*id);
  } else if (std::holds_alternative<Drain>(command)) {
    life_->agent.drain();
    if (handoff != nullptr) handoff->leave();
  } else if (handoff == nullptr) {
    return;
  } else if (auto* letter = std::get_if<HandoffMail>(&command)) {
    handoff->on_mail(std::move(*letter));
  } else if (auto* report = std::get_if<LoadReport>(&command)) {
    handoff->on_report(std::move(*report));
  } else {
    const Placement& gone = std::get<PeerGone>(command).peer;
    handoff->peer_gone(gone.instance, gone.incarnation);
  }
}

void Node::refuse(const Request& request) {
  std::vector<TokenEvent> events(1);
  events[0].request = request.id;
  events[0].attempt = request.attempt;
  events[0].index = static_cast<std::int32_t>(request.output.size());
  events[0].finish = FinishReason::kError;
  events[0].error = {ErrorCode::kBusy, "an earlier attempt at it is being handed over here", 1};
  words.push_back({clock_->now(), {}, incarnation_, std::move(events)});
}

TimePoint Node::run() {
  if (!life_) return TimePoint::max();
  if (clock_->now() < busy_until_) return busy_until_;
  std::vector<Command> commands = std::exchange(inbox_, {});
  for (Command& command : commands) handle(command);
  if (life_->handoff) life_->handoff->before_step();
  const bool had_work = !life_->engine.idle();
  bool ran = false;
  if (had_work) {
    ran = life_->agent.step();
  } else {
    life_->agent.report_if_due();
  }
  if (life_->handoff) life_->handoff->after_step();
  busy_until_ = clock_->now();
  clock_->ahead = {};
  if (ran) return busy_until_;
  return had_work ? std::min(busy_until_ + kRetry, life_->next()) : life_->next();
}

bool Node::idle() const {
  return !life_ ||
         (inbox_.empty() && life_->engine.idle() && (!life_->handoff || life_->handoff->idle()));
}

const Engine* Node::engine() const {
  return life_ ? &life_->engine : nullptr;
}

const HandoffAgent* Node::handoff_agent() const {
  return life_ ? life_->handoff.get() : nullptr;
}

void Node::on_tokens(std::vector<TokenEvent>&& events) {
  if (life_->handoff) life_->handoff->on_events(events);
  words.push_back({clock_->now(), {}, incarnation_, std::move(events)});
}

void Node::on_report(LoadReport&& report) {
  if (life_->handoff) share(report);
  last_report_ = report;
  reports.push_back({clock_->now(), {}, incarnation_, std::move(report)});
}

void Node::send(HandoffMail&& letter) {
  mail.push_back({clock_->now(), {}, incarnation_, std::move(letter)});
}

void Node::runs_at(const RequestOrigin& origin, const Placement& placement) {
  words.push_back(
      {clock_->now(), {}, incarnation_, RunsAt{origin.request, origin.attempt, placement}});
}

void Node::share(const LoadReport& report) {
  if (report.role == Role::kPrefill || peers_->seeking == 0) return;  // nobody asks for it
  shared.push_back({clock_->now(), {}, incarnation_, report});
}

Node::Totals Node::totals() const {
  Totals sum = before_;
  if (!life_) return sum;
  const EngineStats stats = life_->engine.stats();
  sum.busy_seconds += stats.busy_seconds;
  sum.preemptions += stats.preemptions;
  sum.steps += stats.steps;
  if (!life_->handoff) return sum;
  const HandoffStats handoffs = life_->handoff->stats();
  const auto ended = [&](HandoffOutcome outcome) {
    return handoffs.source.total()[static_cast<std::size_t>(outcome)];
  };
  HandoffCounts counts{
      .moved = ended(HandoffOutcome::kMoved),
      .stayed = ended(HandoffOutcome::kStayed),
      .other_ends = ended(HandoffOutcome::kEnded) + ended(HandoffOutcome::kCancelled),
      .refused = handoffs.source.not_before + handoffs.source.never,
      .lost = handoffs.source.targets_lost,
      .bytes = 0,
      .taken = handoffs.taken,
      .expired = handoffs.expired};
  for (const auto& [transport, bytes] : handoffs.transfer.bytes) counts.bytes += bytes;
  sum.handoffs += counts;
  return sum;
}

double Node::busy_seconds() const {
  return totals().busy_seconds;
}
std::int64_t Node::preemptions() const {
  return totals().preemptions;
}
std::int64_t Node::steps() const {
  return totals().steps;
}
HandoffCounts Node::handoffs() const {
  return totals().handoffs;
}

}  // namespace sluice
