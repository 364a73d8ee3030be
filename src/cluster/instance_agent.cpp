#include "cluster/instance_agent.h"

#include <algorithm>
#include <utility>

namespace sluice {

InstanceAgent::InstanceAgent(InstanceAgentOptions options, Engine& engine, const Clock& clock,
                             ReportSink& reports)
    : options_(options), engine_(engine), clock_(clock), reports_(reports) {}

void InstanceAgent::submit(std::unique_ptr<Request> request) {
  engine_.submit(std::move(request));
  changed_ = true;
}

void InstanceAgent::cancel(RequestId request) {
  engine_.cancel(request);
  changed_ = true;
}

bool InstanceAgent::step() {
  const bool ran = engine_.step();
  changed_ = changed_ || ran;
  report_if_due();
  return ran;
}

void InstanceAgent::drain() {
  draining_ = true;
  changed_ = true;
}

TimePoint InstanceAgent::next_report() const {
  if (sequence_ == 0) return last_report_;
  return last_report_ + (changed_ ? options_.min_interval : options_.max_interval);
}

void InstanceAgent::report_if_due() {
  const TimePoint now = clock_.now();
  if (sequence_ > 0 && now < next_report()) return;
  LoadReport report = make_report(now);
  last_report_ = now;
  changed_ = false;
  reports_.on_report(std::move(report));
}

// The plan's outlook does not know who was admitted since the window began: what
// is granted beyond the beginning is taken off. Where nothing runs there is nothing
// to look out for, whatever the last plan said.
void InstanceAgent::add_outlook(const EngineLoad& load, LoadReport& report) {
  if (load.window_number != window_) {
    window_ = load.window_number;
    window_granted_ = load.kv.granted_blocks;
  }
  if (load.running_sequences == 0) return;
  const std::int64_t arrived = std::max<std::int64_t>(0, load.kv.granted_blocks - window_granted_);
  report.outlook.reserve(load.outlook.size());
  for (const Outlook& o : load.outlook) {
    const std::int64_t demand = o.demand_blocks + arrived;
    report.outlook.push_back(
        {.at = load.window_begin + o.after,
         .demand_blocks = demand,
         .free_blocks = std::max<std::int64_t>(0, report.total_blocks - demand)});
  }
}

LoadReport InstanceAgent::make_report(TimePoint now) {
  const EngineLoad load = engine_.load();
  LoadReport r;
  r.instance = options_.instance;
  r.incarnation = options_.incarnation;
  r.sequence = ++sequence_;
  r.measured_at = now;
  r.role = options_.role;
  r.draining = draining_;
  r.waiting_requests = load.waiting_requests;
  r.waiting_tokens = load.waiting_tokens;
  r.uncomputed_tokens = load.uncomputed_tokens;
  r.running_sequences = load.running_sequences;
  r.context_tokens = load.context_tokens;
  r.block_tokens = options_.block_tokens;
  r.total_blocks = load.kv.total_blocks;
  r.granted_blocks = load.kv.granted_blocks;
  r.free_blocks = std::int64_t{load.kv.free_blocks} + load.kv.cached_blocks;
  r.window_number = load.window_number;
  r.window_end = load.window_end;
  add_outlook(load, r);
  r.step = {load.step.base,
            load.step.per_prefill_token,
            load.step.per_decode_sequence,
            load.step.per_context_token,
            load.step.per_prefill_context,
            load.steps_observed,
            load.prefill_steps_observed};
  r.step_token_budget = options_.step_token_budget;
  r.max_running = options_.max_running;
  r.output_quantiles = load.output_quantiles;
  r.seen = engine_.take_seen();
  return r;
}

}  // namespace sluice
