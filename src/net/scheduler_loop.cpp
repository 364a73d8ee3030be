#include "net/scheduler_loop.h"

#include <algorithm>
#include <utility>

#include "net/thread_name.h"

namespace sluice {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(100);
constexpr Duration kIdleTick = std::chrono::seconds(5);

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

}  // namespace

SchedulerLoop::SchedulerLoop(GlobalSchedulerOptions options,
                             std::unique_ptr<PlacementPolicy> policy, Duration snapshot_interval,
                             SchedulerInbox& inbox, InstancePort& instances, TokenSink& sink,
                             const Clock& clock)
    : snapshot_interval_(snapshot_interval),
      inbox_(inbox),
      sink_(sink),
      clock_(clock),
      scheduler_(options, std::move(policy), instances, sink, clock) {
  publish(clock_.now());
}

SchedulerLoop::~SchedulerLoop() {
  stop();
}

void SchedulerLoop::start() {
  thread_ = std::thread([this] { run(); });
}

void SchedulerLoop::stop() {
  if (!thread_.joinable()) return;
  inbox_.push_urgent(StopMessage{});
  thread_.join();
}

void SchedulerLoop::run() {
  set_thread_name("scheduler");
  std::vector<SchedulerMessage> messages;
  const Error stopped{ErrorCode::kUnavailable, "the server is stopping", 0};
  while (!stopping_) {
    inbox_.wait_and_drain(messages, sleep_time(clock_.now()));
    const TimePoint now = clock_.now();
    for (SchedulerMessage& message : messages) handle(message, now);
    if (now - ticked_at_ >= kTick) {
      ticked_at_ = now;
      scheduler_.tick(now);
    }
    note_progress();
    if (unpublished_ && now - published_at_ >= snapshot_interval_) publish(now);
  }
  inbox_.close();
  inbox_.drain(messages);  // what came after the stop: refused by the drained scheduler
  scheduler_.drain();
  scheduler_.stop_retrying();
  for (SchedulerMessage& message : messages) handle(message, clock_.now());
  scheduler_.fail_queued(stopped, clock_.now());
  publish(clock_.now());
  note_progress();
}

void SchedulerLoop::handle(SchedulerMessage& message, TimePoint now) {
  unpublished_ = true;
  std::visit(
      Overloaded{
          [&](SubmitMessage& m) { scheduler_.submit(std::move(m.request), now); },
          [&](CancelMessage& m) { scheduler_.cancel(m.request, now); },
          [&](ReportMessage& m) {
            Known& known = known_[m.report.instance];
            if (m.stats) known.stats = std::move(m.stats);
            if (m.handoffs) {
              for (const Decision& d : m.handoffs->decisions) scheduler_.note(d);
              known.handoffs = std::move(m.handoffs);
            }
            known.name = std::move(m.name);
            scheduler_.on_report(std::move(m.report), now);
          },
          [&](EventsMessage& m) { scheduler_.on_tokens(std::move(m.events), now); },
          [&](RunsAtMessage& m) { scheduler_.runs_at(m.request, m.attempt, m.placement, now); },
          [&](GoneMessage& m) {
            known_.erase(m.instance);
            scheduler_.instance_gone(m.instance, m.incarnation, m.error, now);
          },
          [&](DrainMessage&) {
            draining_ = true;
            scheduler_.drain();
          },
          [&](ClosingMessage&) { scheduler_.stop_retrying(); },
          [&](StopMessage&) { stopping_ = true; },
      },
      message);
}

void SchedulerLoop::note_progress() {
  const std::span<const LoadRow> rows = scheduler_.loads().rows();
  ready_.store(!draining_ && !stopping_ &&
                   std::any_of(rows.begin(), rows.end(),
                               [](const LoadRow& row) { return row.present && !row.draining; }),
               std::memory_order_relaxed);
  if (!draining_ || !scheduler_.idle()) return;
  {
    const std::lock_guard lock(mutex_);
    drained_ = true;
  }
  drained_changed_.notify_all();
}

// While something runs reports come by themselves; the tick is for the queue.
Duration SchedulerLoop::sleep_time(TimePoint now) const {
  if (unpublished_) {
    return std::max(Duration::zero(), published_at_ + snapshot_interval_ - now);
  }
  return scheduler_.idle() ? kIdleTick : kTick;
}

void SchedulerLoop::publish(TimePoint now) {
  auto next = std::make_shared<ClusterSnapshot>(scheduler_.snapshot(now));
  for (InstanceSnapshot& instance : next->instances) {
    const auto it = known_.find(instance.report.instance);
    if (it == known_.end()) continue;
    instance.name = it->second.name;
    if (it->second.stats) instance.stats = *it->second.stats;
    if (it->second.handoffs) instance.handoffs = it->second.handoffs->stats;
  }
  published_at_ = now;
  unpublished_ = false;
  const std::lock_guard lock(mutex_);
  snapshot_ = std::move(next);
}

std::shared_ptr<const ClusterSnapshot> SchedulerLoop::snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

bool SchedulerLoop::wait_drained(Duration timeout) {
  std::unique_lock lock(mutex_);
  return drained_changed_.wait_for(lock, timeout, [this] { return drained_; });
}

}  // namespace sluice
