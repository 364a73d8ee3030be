#include "net/engine_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "net/thread_name.h"

namespace sluice {
namespace {

// An engine that has work but could not step (its memory is being waited for)
// looks again after this time, or when something arrives.
constexpr Duration kRetry = std::chrono::milliseconds(2);
constexpr Duration kStatsInterval = std::chrono::milliseconds(90);

}  // namespace

EngineLoop::EngineLoop(const InstanceAgentOptions& options, const EngineOptions& engine,
                       std::unique_ptr<ModelRunner> runner, std::unique_ptr<HostKv> host,
                       const SamplerFactory& samplers, const Clock& clock, EngineOutlet& outlet,
                       std::size_t inbox_capacity)
    : options_(options),
      clock_(clock),
      outlet_(outlet),
      inbox_(inbox_capacity),
      runner_(std::move(runner)),
      host_(std::move(host)),
      engine_(engine, *runner_, samplers, clock, *this, {.host = host_.get()}),
      agent_(options, engine_, clock, *this) {}

EngineLoop::~EngineLoop() {
  stop();
}

void EngineLoop::join(HandoffParts parts) {
  parts_ = std::move(parts);
  handoff_ = std::make_unique<HandoffAgent>(parts_.options, engine_, std::move(parts_.policy),
                                            *parts_.transfer, clock_, *parts_.peers);
}

void EngineLoop::start() {
  thread_ = std::thread([this] { run(); });
}

void EngineLoop::stop() {
  if (!thread_.joinable()) return;
  inbox_.push_urgent(Stop{});
  thread_.join();
}

bool EngineLoop::submit(std::unique_ptr<Request>& request) {
  Command command = std::move(request);
  if (inbox_.push(std::move(command))) return true;
  request = std::move(std::get<0>(command));
  return false;
}

void EngineLoop::cancel(RequestId request) {
  inbox_.push_urgent(request);
}

void EngineLoop::drain() {
  inbox_.push_urgent(Drain{});
}

void EngineLoop::run() {
  set_thread_name(fmt::format("engine-{}", options_.instance.value));
  Error error{ErrorCode::kUnavailable, "the server is stopping", 0};
  try {
    serve();
  } catch (const std::exception& e) {  // of a library below: nothing of ours throws
    error = {ErrorCode::kUnavailable,
             fmt::format("instance {} failed: {}", options_.instance.value, e.what()), 0};
    spdlog::error("{}", error.message);
  }
  end_all(error);
  if (handoff_) parts_.peers->ended();
  outlet_.on_end(options_.instance, options_.incarnation, error);
}

void EngineLoop::serve() {
  bool ran = false;
  while (!stopping_) {
    if (ran) {
      inbox_.drain(commands_);
    } else {
      inbox_.wait_and_drain(commands_, sleep_time());
    }
    for (Command& command : commands_) handle(command);
    ran = false;
    if (handoff_) handoff_->before_step();
    if (engine_.idle()) {
      agent_.report_if_due();
    } else {
      ran = agent_.step();
    }
    if (handoff_) handoff_->after_step();
  }
}

Duration EngineLoop::sleep_time() const {
  TimePoint until = agent_.next_report();
  if (handoff_ && handoff_->sending()) return Duration::zero();
  if (handoff_) until = std::min(until, handoff_->next_tick());
  const Duration limit = until - clock_.now();
  return std::max(Duration::zero(), engine_.idle() ? limit : std::min(limit, kRetry));
}

void EngineLoop::handle(Command& command) {
  if (auto* request = std::get_if<std::unique_ptr<Request>>(&command)) {
    // Null: handled already, when an exception came between.
    if (!*request) return;
    if (handoff_ && handoff_->knows((*request)->id)) {
      return refuse(**request,
                    {ErrorCode::kBusy, "an earlier attempt at it is being handed over here", 1});
    }
    agent_.submit(std::move(*request));
  } else if (const auto* id = std::get_if<RequestId>(&command)) {
    if (!handoff_ || !handoff_->cancel(*id)) agent_.cancel(*id);
  } else if (auto* mail = std::get_if<HandoffMail>(&command)) {
    if (handoff_) handoff_->on_mail(std::move(*mail));
  } else if (auto* kv = std::get_if<KvMail>(&command)) {
    if (parts_.pieces != nullptr) parts_.pieces->on_message(kv->from, std::move(kv->message));
  } else if (const auto* lost = std::get_if<WayLost>(&command)) {
    if (parts_.pieces != nullptr) parts_.pieces->peer_lost(lost->peer);
  } else if (auto* report = std::get_if<LoadReport>(&command)) {
    if (handoff_) handoff_->on_report(std::move(*report));
  } else if (const auto* gone = std::get_if<PeerGone>(&command)) {
    if (handoff_) handoff_->peer_gone(gone->peer.instance, gone->peer.incarnation);
  } else if (std::holds_alternative<Look>(command)) {
    // The handoffs are looked at in any case.
  } else if (std::holds_alternative<Drain>(command)) {
    agent_.drain();
    if (handoff_) handoff_->leave();
  } else {
    stopping_ = true;
  }
}

void EngineLoop::refuse(const Request& request, const Error& error) {
  std::vector<TokenEvent> events(1);
  events[0].request = request.id;
  events[0].attempt = request.attempt;
  events[0].index = static_cast<std::int32_t>(request.output.size());
  events[0].finish = FinishReason::kError;
  events[0].error = error;
  outlet_.on_tokens(std::move(events));
}

// What the engine holds ends here, and what came too late for it.
void EngineLoop::end_all(const Error& error) {
  inbox_.close();
  engine_.fail_all(error);
  const auto refuse_late = [&](Command& command) {
    const auto* request = std::get_if<std::unique_ptr<Request>>(&command);
    if (request != nullptr && *request != nullptr) refuse(**request, error);
  };
  for (Command& command : commands_) refuse_late(command);
  inbox_.drain(commands_);
  for (Command& command : commands_) refuse_late(command);
  if (!handoff_) return;
  for (const auto& [transport, counts] : handoff_->stats().source.outcomes) {
    const std::int64_t moved = counts[static_cast<std::size_t>(HandoffOutcome::kMoved)];
    if (moved > 0) spdlog::info("{} sequence(s) were handed over by {}", moved, transport);
  }
}

DeviceState EngineLoop::device_state() const {
  const DeviceGauge::Reading told = device_ ? device_->read() : DeviceGauge::Reading{};
  return {told.total_bytes, told.free_bytes, told.busy.value_or(busy_.share())};
}

void EngineLoop::on_report(LoadReport&& report) {
  report.device = device_state();
  if (handoff_) parts_.peers->share(report);
  std::shared_ptr<const EngineStats> stats;
  std::shared_ptr<const HandoffReport> handoffs;
  const TimePoint now = clock_.now();
  if (now - stats_sent_at_ >= kStatsInterval || engine_.idle()) {
    stats_sent_at_ = now;
    stats = std::make_shared<const EngineStats>(engine_.stats());
    busy_.update(stats->busy_seconds, now);
    if (handoff_) {
      handoffs = std::make_shared<const HandoffReport>(
          HandoffReport{handoff_->stats(), handoff_->take_decisions()});
    }
  }
  outlet_.on_report(std::move(report), std::move(stats), std::move(handoffs));
}

void EngineLoop::on_tokens(std::vector<TokenEvent>&& events) {
  if (handoff_) handoff_->on_events(events);
  outlet_.on_tokens(std::move(events));
}

}  // namespace sluice
