#include "gateway/debug_json.h"

#include <fmt/format.h>

#include "gateway/json_writer.h"
#include "scheduling/decision_inputs.h"

namespace sluice {

namespace {

double milliseconds(Duration d) {
  return to_seconds(d) * 1e3;
}

// Above 2^53 a number would lose digits in a browser.
std::string id_text(RequestId id) {
  return fmt::format("{:016x}", id.value);
}

const char* bound_name(WindowBound bound) {
  switch (bound) {
    case WindowBound::kCompletion: return "completion";
    case WindowBound::kOverhead: return "overhead";
    case WindowBound::kUnused: return "unused";
    case WindowBound::kCapacity: return "capacity";
    case WindowBound::kMaximum: return "maximum";
    case WindowBound::kIdle: return "idle";
  }
  return "unknown";
}

void write_blocks(JsonWriter& json, const KvStats& kv) {
  json.key("blocks").begin_object();
  json.member("total", kv.total_blocks).member("granted", kv.granted_blocks);
  json.member("written", kv.written_blocks).member("cached", kv.cached_blocks);
  json.member("unfilled_tokens", kv.unfilled_tokens);
  json.member("free", kv.free_blocks).end_object();
  json.key("prefix_cache").begin_object();
  json.member("queried_tokens", kv.prefix_queries).member("hit_tokens", kv.prefix_hits);
  json.member("evicted_blocks", kv.prefix_evictions).end_object();
}

void write_host(JsonWriter& json, const HostKvStats& host) {
  json.key("host_memory").begin_object();
  json.member("total_blocks", host.total_blocks).member("used_blocks", host.used_blocks);
  json.member("paused_sequences", host.paused_sequences).member("resumed", host.resumed);
  json.member("block_copy_us", host.block_copy_seconds * 1e6).end_object();
}

void write_window(JsonWriter& json, const Window& window, const WindowStats& stats, TimePoint now) {
  json.key("window").begin_object();
  json.member("number", window.number).member("bound", bound_name(window.plan.bound));
  json.member("length_ms", milliseconds(window.end - window.begin));
  json.member("elapsed_ms", milliseconds(now - window.begin));
  json.member("steps", window.plan.steps).member("steps_left", window.steps_left);
  json.member("demand_blocks", stats.demand_blocks).member("granted_blocks", stats.granted_blocks);
  json.member("peak_blocks", window.plan.peak_blocks);
  json.member("room_blocks", window.plan.room_blocks);
  json.member("wanted_room_blocks", window.plan.wanted_room_blocks);
  json.key("grants").begin_array();
  for (const Grant& grant : window.plan.grants) {
    json.begin_object().member("sequence", grant.id.value);
    json.member("until_tokens", grant.until_tokens).member("new_blocks", grant.new_blocks);
    json.end_object();
  }
  json.end_array().key("deferred").begin_array();
  for (const SequenceId id : window.plan.deferred) json.value(id.value);
  json.end_array().end_object();
  json.key("windows").begin_object();
  json.member("count", stats.windows).member("early_renewals", stats.early_renewals);
  json.member("seconds", stats.seconds_sum).member("planning_seconds", stats.planning_seconds_sum);
  json.member("unused_blocks", stats.unused_blocks_sum);
  json.member("granted_blocks", stats.granted_blocks_sum);
  json.key("shortfall").begin_object();
  json.member("prefixes", stats.shortfall_prefixes).member("shortened", stats.shortfall_shortened);
  json.member("admission", stats.shortfall_admission);
  json.member("move", stats.shortfall_move).member("pause", stats.shortfall_pause);
  json.member("recompute", stats.shortfall_recompute).end_object().end_object();
}

void write_load(JsonWriter& json, const LoadReport& report, TimePoint now) {
  json.member("waiting_requests", report.waiting_requests);
  json.member("waiting_tokens", report.waiting_tokens);
  json.member("uncomputed_tokens", report.uncomputed_tokens);
  json.member("running_sequences", report.running_sequences);
  json.member("context_tokens", report.context_tokens);
  json.member("block_tokens", report.block_tokens);
  json.key("device").begin_object().member("total_bytes", report.device.total_bytes);
  json.member("free_bytes", report.device.free_bytes).member("busy", report.device.busy);
  json.end_object().key("outlook").begin_array();
  for (const DemandPoint& point : report.outlook) {
    json.begin_object().member("in_ms", milliseconds(point.at - now));
    json.member("demand_blocks", point.demand_blocks).member("free_blocks", point.free_blocks);
    json.end_object();
  }
  json.end_array().key("step_cost").begin_object();
  json.member("base", report.step.base).member("prefill_token", report.step.per_prefill_token);
  json.member("decode_sequence", report.step.per_decode_sequence);
  json.member("context_token", report.step.per_context_token);
  json.member("prefill_context_token", report.step.per_prefill_context);
  json.member("steps", report.step.steps).member("prefill_steps", report.step.prefill_steps);
  json.end_object();
  json.key("output_quantiles").begin_array();
  for (const std::int32_t tokens : report.output_quantiles) json.value(tokens);
  json.end_array();
}

void write_running(JsonWriter& json, const std::vector<SequenceView>& running) {
  json.key("running").begin_array();
  for (const SequenceView& view : running) {
    json.begin_object().member("sequence", view.id.value).member("request", id_text(view.request));
    json.member("prompt_tokens", view.prompt_tokens).member("generated", view.generated);
    json.member("max_tokens", view.max_tokens).member("held_tokens", view.held_tokens);
    json.member("held_blocks", view.held_blocks).member("granted_tokens", view.granted_tokens);
    json.end_object();
  }
  json.end_array();
}

void write_counters(JsonWriter& json, const EngineStats& stats) {
  json.member("steps", stats.steps).member("busy_seconds", stats.busy_seconds);
  json.member("prompt_tokens", stats.prompt_tokens);
  json.member("cached_prompt_tokens", stats.cached_prompt_tokens);
  json.member("computed_prefill_tokens", stats.computed_prefill_tokens);
  json.member("generated_tokens", stats.generated_tokens);
  json.member("preemptions", stats.preemptions);
  json.key("speculation").begin_object();
  json.member("drafts", stats.speculation.drafts);
  json.member("draft_tokens", stats.speculation.draft_tokens);
  json.member("accepted_tokens", stats.speculation.accepted_tokens).end_object();
  json.member("forecast_error_tokens", stats.forecast_error_tokens);
  json.member("step_time_error", stats.step_time_error);
}

void write_handoffs(JsonWriter& json, const HandoffStats& handoffs) {
  json.key("handoffs").begin_object();
  const auto members = [&json](const OutcomeCounts& counts) {
    for (std::size_t i = 0; i < counts.size(); ++i) json.member(kHandoffOutcomeNames[i], counts[i]);
  };
  members(handoffs.source.total());
  json.key("transports").begin_object();
  for (const auto& [transport, counts] : handoffs.source.outcomes) {
    json.key(transport.c_str()).begin_object();
    members(counts);
    json.end_object();
  }
  json.end_object();
  json.member("leaving", handoffs.leaving).member("reservations", handoffs.reservations);
  json.member("taken", handoffs.taken).member("expired", handoffs.expired);
  json.member("refused_not_before", handoffs.source.not_before);
  json.member("refused_never", handoffs.source.never);
  json.member("targets_lost", handoffs.source.targets_lost);
  json.key("bytes").begin_object();
  for (const auto& [by, bytes] : handoffs.transfer.bytes) json.member(by.c_str(), bytes);
  json.end_object();
  json.member("blocks_held", handoffs.transfer.blocks_held);
  json.member("transfers_failed", handoffs.transfer.failed).end_object();
}

void write_candidate(JsonWriter& json, const Candidate& candidate) {
  json.begin_object().member("instance", candidate.instance.value);
  json.member("rejection", rejection_name(candidate.rejection)).member("cost", candidate.cost);
  json.member("predicted_ttft_ms", candidate.predicted_ttft_s * 1e3);
  json.member("report_age_ms", milliseconds(candidate.report_age)).end_object();
}

void write_row(JsonWriter& json, const LoadRow& row, TimePoint now) {
  json.begin_object().member("instance", row.instance.value);
  json.member("incarnation", fmt::format("{:x}", row.incarnation.value));
  json.member("present", row.present).member("role", role_name(row.role));
  json.member("draining", row.draining).member("age_ns", (now - row.received_at).count());
  json.member("step_s", row.step_s).member("token_s", row.token_s).member("wait_s", row.wait_s);
  json.member("window_end_s", row.window_end_s).member("crowd", row.crowd);
  json.member("decode_s", row.decode_s).member("running", row.running);
  json.member("waiting", row.waiting).member("max_running", row.max_running);
  json.member("kv_tokens", row.kv_tokens).member("uncomputed_tokens", row.uncomputed_tokens);
  json.member("waiting_blocks", row.waiting_blocks).member("total_blocks", row.total_blocks);
  json.member("block_tokens", row.block_tokens).key("output_quantiles").begin_array();
  for (const std::int32_t tokens : row.output_quantiles) json.value(tokens);
  json.end_array().key("free_blocks").begin_array();  // [seconds after the report, blocks]
  for (std::size_t i = 0; i < row.num_points; ++i) {
    json.begin_array().value(row.point_s[i]).value(row.point_free[i]).end_array();
  }
  json.end_array().key("ledger").begin_object().member("tokens", row.ledger.tokens);
  json.member("blocks", row.ledger.blocks).member("requests", row.ledger.requests);
  json.end_object().end_object();
}

void write_inputs(JsonWriter& json, const DecisionInputs& inputs) {
  json.key("inputs").begin_object().key("rng").begin_array();
  for (const std::uint64_t word : inputs.state.rng.state()) json.value(fmt::format("{:x}", word));
  json.end_array().member("turn", inputs.state.turn).key("cached").begin_array();
  for (const CachedPrefix& prefix : inputs.query.cached) {
    json.begin_object().member("instance", prefix.instance.value);
    json.member("tokens", prefix.tokens).end_object();
  }
  json.end_array().key("refused").begin_array();
  for (const InstanceId instance : inputs.query.refused) json.value(instance.value);
  json.end_array().member("table_rows", inputs.table_rows).key("loads").begin_array();
  for (const LoadRow& row : inputs.rows) write_row(json, row, inputs.query.now);
  json.end_array().end_object();
}

}  // namespace

std::string memory_json(const ClusterSnapshot& snapshot, TimePoint now) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().member("age_ms", milliseconds(now - snapshot.at));
  json.member("draining", snapshot.draining).member("queued_requests", snapshot.queued_requests);
  json.member("queue_limit", snapshot.queue_limit).key("instances").begin_array();
  for (const InstanceSnapshot& instance : snapshot.instances) {
    const LoadReport& report = instance.report;
    json.begin_object().member("instance", report.instance.value);
    if (!instance.name.empty()) json.member("name", instance.name);
    json.member("incarnation", fmt::format("{:x}", report.incarnation.value));
    json.member("role", role_name(report.role)).member("draining", report.draining);
    json.member("report_age_ms", milliseconds(instance.report_age));
    json.member("ledger_tokens", instance.ledger_tokens);
    write_load(json, report, now);
    write_blocks(json, instance.stats.kv);
    write_host(json, instance.stats.host);
    write_window(json, instance.stats.window, instance.stats.windows, now);
    write_running(json, instance.stats.running);
    write_counters(json, instance.stats);
    if (instance.handoffs) write_handoffs(json, *instance.handoffs);
    json.end_object();
  }
  json.end_array().end_object();
  return text;
}

std::string decisions_json(const ClusterSnapshot& snapshot, TimePoint now, bool inputs) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("decisions").begin_array();
  for (auto d = snapshot.decisions.rbegin(); d != snapshot.decisions.rend(); ++d) {
    json.begin_object().member("request", id_text(d->request));
    json.member("age_ms", milliseconds(now - d->at)).member("policy", d->policy);
    json.member("role", role_name(d->role)).key("by");
    if (d->by) {
      json.value(d->by->value);
    } else {
      json.value("global");
    }
    json.member("outcome", outcome_name(d->outcome)).key("instance");
    if (d->placement) {
      json.value(d->placement->instance.value);
    } else {
      json.null();
    }
    json.member("prompt_tokens", d->prompt_tokens).member("max_new_tokens", d->max_new_tokens);
    json.member("expected_wait_ms", milliseconds(d->expected_wait));
    json.member("needed_blocks", d->needed_blocks).member("largest_blocks", d->largest_blocks);
    json.key("candidates").begin_array();
    for (const Candidate& candidate : d->candidates) write_candidate(json, candidate);
    json.end_array();
    if (inputs && d->inputs) write_inputs(json, *d->inputs);
    json.end_object();
  }
  json.end_array().end_object();
  return text;
}

}  // namespace sluice
