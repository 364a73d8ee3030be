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
  Life(Node& node, TokenSink& tokens, ReportSink& reports)
      : runner(node.model_.make_runner(node.id_.value), node.clock_->ahead),
        engine(node.options_.engine, runner, node.model_.samplers(), *node.clock_, tokens),
        agent({.instance = node.id_,
               .incarnation = node.incarnation_,
               .role = node.options_.role,
               .block_tokens = node.options_.engine.kv.window.block_tokens,
               .max_running = node.options_.engine.max_running,
               .step_token_budget = node.options_.engine.batch.max_step_tokens,
               .min_interval = node.options_.report_interval,
               .max_interval = node.options_.idle_report_interval},
              engine, *node.clock_, reports) {}
  TimedRunner runner;
  Engine engine;
  InstanceAgent agent;
};

Node::Node(InstanceId id, NodeOptions options, SimulatedModel& model, const Clock& world)
    : id_(id),
      options_(std::move(options)),
      model_(model),
      clock_(std::make_unique<AheadClock>(world)) {}

Node::~Node() = default;

void Node::start() {
  crash();
  ++incarnation_.value;
  busy_until_ = clock_->now();
  TokenSink& token_sink = *this;
  ReportSink& report_sink = *this;
  life_ = std::make_unique<Life>(*this, token_sink, report_sink);
}

void Node::crash() {
  before_ = totals();
  life_.reset();
  inbox_.clear();
  last_report_ = {};
  const TimePoint now = clock_->now();
  while (!tokens.empty() && tokens.back().at > now) tokens.pop_back();
  while (!reports.empty() && reports.back().at > now) reports.pop_back();
}

void Node::drain() {
  if (life_) life_->agent.drain();
}

void Node::submit(std::unique_ptr<Request> request, Incarnation incarnation) {
  if (!life_ || incarnation != incarnation_) return;
  const RequestId id = request->id;
  inbox_.push_back({std::move(request), id});
}

void Node::cancel(RequestId request) {
  if (life_) inbox_.push_back({nullptr, request});
}

TimePoint Node::run() {
  if (!life_) return TimePoint::max();
  if (clock_->now() < busy_until_) return busy_until_;
  for (Command& command : inbox_) {
    if (command.request) {
      life_->agent.submit(std::move(command.request));
    } else {
      life_->agent.cancel(command.id);
    }
  }
  inbox_.clear();
  if (life_->engine.idle()) {
    life_->agent.report_if_due();
    return life_->agent.next_report();
  }
  const bool ran = life_->agent.step();
  busy_until_ = clock_->now();
  clock_->ahead = {};
  return ran ? busy_until_ : std::max(busy_until_, clock_->now()) + kRetry;
}

bool Node::idle() const {
  return !life_ || (inbox_.empty() && life_->engine.idle());
}

const Engine* Node::engine() const {
  return life_ ? &life_->engine : nullptr;
}

void Node::on_tokens(std::vector<TokenEvent>&& events) {
  tokens.push_back({clock_->now(), {}, incarnation_, std::move(events)});
}

void Node::on_report(LoadReport&& report) {
  last_report_ = report;
  reports.push_back({clock_->now(), {}, incarnation_, std::move(report)});
}

Node::Totals Node::totals() const {
  Totals sum = before_;
  if (life_) {
    const EngineStats stats = life_->engine.stats();
    sum.busy_seconds += stats.busy_seconds;
    sum.preemptions += stats.preemptions;
    sum.steps += stats.steps;
  }
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

}  // namespace sluice
