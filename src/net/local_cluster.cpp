#include "net/local_cluster.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "net/engine_loop.h"
#include "net/scheduler_loop.h"
#include "transfer/local_transfer.h"

namespace sluice {

namespace {

// An instance's way to the others of the process.
class LocalPeers final : public PeerPort {
 public:
  LocalPeers(Placement self, std::vector<std::unique_ptr<EngineLoop>>& engines,
             SchedulerInbox& scheduler)
      : self_(self), engines_(engines), scheduler_(scheduler) {}

  void send(HandoffMail&& mail) override {
    if (mail.to.instance.value < engines_.size()) {
      engines_[mail.to.instance.value]->deliver(std::move(mail));
    }
  }
  void runs_at(const RequestOrigin& origin, const Placement& placement) override {
    scheduler_.push_urgent(RunsAtMessage{origin.request, origin.attempt, placement});
  }
  void left(RequestId) override {}  // only who has a request speaks of it
  void seek_targets() override {}   // it hears of all already
  void share(const LoadReport& report) override {
    if (report.role == Role::kPrefill) return;  // nobody hands over to those
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      if (i != self_.instance.value) engines_[i]->hear(report);
    }
  }
  void ended() override {
    for (std::size_t i = 0; i < engines_.size(); ++i) {
      if (i != self_.instance.value) engines_[i]->peer_gone(self_);
    }
  }

 private:
  const Placement self_;
  std::vector<std::unique_ptr<EngineLoop>>& engines_;  // all are there before any starts
  SchedulerInbox& scheduler_;
};

}  // namespace

class LocalCluster::Impl final : public InstancePort, public EngineOutlet {
 public:
  Impl(const LocalClusterOptions& options, std::unique_ptr<PlacementPolicy> policy,
       const Clock& clock, TokenSink& sink)
      : options_(options),
        capacity_(options.inbox_capacity),
        inbox_(options.inbox_capacity),
        scheduler_(options.scheduler, std::move(policy), options.snapshot_interval, inbox_, *this,
                   sink, clock) {}

  void add(LocalInstance instance, const SamplerFactory& samplers, const Clock& clock) {
    const InstanceAgentOptions agent{
        .instance = InstanceId{static_cast<std::uint32_t>(engines_.size())},
        .role = instance.role,
        .block_tokens = instance.engine.kv.window.block_tokens,
        .max_running = instance.engine.max_running,
        .step_token_budget = instance.engine.batch.max_step_tokens};
    if (instance.role == Role::kPrefill) instance.engine.hands_over = true;
    engines_.push_back(
        std::make_unique<EngineLoop>(agent, instance.engine, std::move(instance.runner),
                                     std::move(instance.host), samplers, clock, *this, capacity_));
    engines_.back()->watch(std::move(instance.device));
    if (!options_.arena.valid()) return;
    const Placement self{agent.instance, agent.incarnation};
    engines_.back()->join(
        {.options = {.self = self,
                     .role = instance.role,
                     .kv = {.model = 0, .layout = options_.arena.layout},  // one model a process
                     .memory = "",
                     .handoff = options_.handoff,
                     .keep_inputs = true},
         .policy = make_policy(options_.decode_policy, options_.placement,
                               Rng(options_.seed + 1 + self.instance.value)),
         .transfer = std::make_unique<LocalTransfer>(options_.arena, LocalTransferOptions{}),
         .peers = std::make_unique<LocalPeers>(self, engines_, inbox_)});
  }

  void start() {
    scheduler_.start();
    for (auto& engine : engines_) engine->start();
  }

  // Engines first: the scheduler hears of everything that they end.
  void stop() {
    accepting_.store(false);
    inbox_.push_urgent(ClosingMessage{});
    for (auto& engine : engines_) engine->stop();
    scheduler_.stop();
  }

  Status submit(std::unique_ptr<Request> request) {
    if (!accepting_.load()) {
      return fail(ErrorCode::kUnavailable, "the server is draining and takes no new requests");
    }
    SchedulerMessage message = SubmitMessage{std::move(request)};
    if (inbox_.push(std::move(message))) return {};
    if (!accepting_.load()) return fail(ErrorCode::kUnavailable, "the server is stopping");
    Error busy{ErrorCode::kBusy,
               fmt::format("{} requests are waiting to be scheduled (limit)", capacity_), 1};
    return tl::unexpected(std::move(busy));
  }
  void cancel_request(RequestId request) { inbox_.push_urgent(CancelMessage{request}); }
  void drain() {
    accepting_.store(false);
    inbox_.push_urgent(DrainMessage{});
  }
  [[nodiscard]] bool accepting() const { return accepting_.load(); }
  [[nodiscard]] std::vector<std::string> learned_lengths() const {
    std::vector<std::string> learned;
    for (const auto& engine : engines_) learned.push_back(engine->learned_lengths());
    return learned;
  }
  [[nodiscard]] SchedulerLoop& scheduler() { return scheduler_; }

 private:
  // InstancePort, on the scheduler's loop.
  bool submit(const Placement& placement, std::unique_ptr<Request>& request) override {
    return engines_[placement.instance.value]->submit(request);
  }
  void cancel(const Placement& placement, RequestId request) override {
    engines_[placement.instance.value]->cancel(request);
  }

  // EngineOutlet, on the engines' loops. Reports come at a bounded rate, events are
  // bounded by what runs, and one that got lost would never be made up for: none of
  // them is counted against the inbox.
  void on_report(LoadReport&& report, std::shared_ptr<const EngineStats> stats,
                 std::shared_ptr<const HandoffReport> handoffs) override {
    inbox_.push_urgent(ReportMessage{std::move(report), std::move(stats), std::move(handoffs), {}});
  }
  void on_tokens(std::vector<TokenEvent>&& events) override {
    inbox_.push_urgent(EventsMessage{std::move(events)});
  }
  void on_end(InstanceId instance, Incarnation incarnation, const Error& error) override {
    inbox_.push_urgent(GoneMessage{instance, incarnation, error});
  }

  const LocalClusterOptions options_;
  const std::size_t capacity_;
  SchedulerInbox inbox_;
  std::vector<std::unique_ptr<EngineLoop>> engines_;  // by id; fixed before start()
  SchedulerLoop scheduler_;
  std::atomic<bool> accepting_{true};
};

Result<std::unique_ptr<LocalCluster>> LocalCluster::start(LocalClusterOptions options,
                                                          std::vector<LocalInstance> instances,
                                                          const SamplerFactory& samplers,
                                                          const Clock& clock, TokenSink& sink) {
  if (instances.empty()) {
    return fail(ErrorCode::kInvalidArgument, "a cluster needs at least 1 instance");
  }
  auto policy = make_policy(options.policy, options.placement, Rng(options.seed));
  const auto prefills = [](const LocalInstance& i) { return i.role != Role::kDecode; };
  const auto apart = [](const LocalInstance& i) { return i.role != Role::kUnified; };
  if (std::none_of(instances.begin(), instances.end(), prefills) ||
      (!options.arena.valid() && std::any_of(instances.begin(), instances.end(), apart))) {
    return fail(ErrorCode::kInvalidArgument,
                "a cluster needs at least 1 instance that prefills, and 1 arena for all of them "
                "where prefill and decode are apart");
  }
  if (!policy || !make_policy(options.decode_policy, options.placement, Rng(options.seed))) {
    std::string known;
    for (const char* name : policy_names())
      known += known.empty() ? name : std::string(", ") + name;
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("no placement policy is called '{}'; there are {}",
                            policy ? options.decode_policy : options.policy, known));
  }
  auto impl = std::make_unique<Impl>(options, std::move(policy), clock, sink);
  for (LocalInstance& instance : instances) impl->add(std::move(instance), samplers, clock);
  impl->start();
  return std::unique_ptr<LocalCluster>(new LocalCluster(std::move(impl)));
}

LocalCluster::LocalCluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalCluster::~LocalCluster() {
  stop();
}

std::vector<std::string> LocalCluster::learned_lengths() const {
  return impl_->learned_lengths();
}

Status LocalCluster::submit(std::unique_ptr<Request> request) {
  return impl_->submit(std::move(request));
}
void LocalCluster::cancel(RequestId request) {
  impl_->cancel_request(request);
}
std::shared_ptr<const ClusterSnapshot> LocalCluster::snapshot() const {
  return impl_->scheduler().snapshot();
}
bool LocalCluster::ready() const {
  return impl_->accepting() && impl_->scheduler().ready();
}
void LocalCluster::drain() {
  impl_->drain();
}
bool LocalCluster::wait_drained(Duration timeout) {
  return impl_->scheduler().wait_drained(timeout);
}
void LocalCluster::stop() {
  impl_->stop();
}

}  // namespace sluice
