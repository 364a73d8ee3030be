#include "net/wire.h"

namespace sluice {
namespace {

std::int64_t ns(Duration d) {
  return d.count();
}

void encode(const GrammarSpec& spec, proto::Grammar& m) {
  m.set_gbnf(spec.gbnf);
  m.set_prefill(spec.prefill);
  m.set_lazy(spec.lazy);
  for (const std::string& word : spec.trigger_words) m.add_trigger_words(word);
  for (const std::string& pattern : spec.trigger_patterns) m.add_trigger_patterns(pattern);
  m.mutable_trigger_tokens()->Add(spec.trigger_tokens.begin(), spec.trigger_tokens.end());
}

void encode(const SamplingParams& s, proto::Sampling& m) {
  m.set_temperature(s.temperature);
  m.set_top_k(s.top_k);
  m.set_top_p(s.top_p);
  m.set_min_p(s.min_p);
  m.set_typical_p(s.typical_p);
  m.set_presence_penalty(s.presence_penalty);
  m.set_frequency_penalty(s.frequency_penalty);
  m.set_repetition_penalty(s.repetition_penalty);
  m.set_repeat_last_n(s.repeat_last_n);
  for (const auto& [token, bias] : s.logit_bias) {
    m.add_bias_tokens(token);
    m.add_biases(bias);
  }
  m.set_seed(s.seed);
  m.set_min_tokens(s.min_tokens);
  m.set_ignore_eos(s.ignore_eos);
  m.set_forced_length(s.forced_length);
  m.mutable_stop_tokens()->Add(s.stop_tokens.begin(), s.stop_tokens.end());
  m.mutable_allowed_tokens()->Add(s.allowed_tokens.begin(), s.allowed_tokens.end());
  for (const std::vector<Token>& sequence : s.banned_sequences) {
    m.add_banned_sequences()->mutable_tokens()->Add(sequence.begin(), sequence.end());
  }
  m.mutable_logprob_tokens()->Add(s.logprob_tokens.begin(), s.logprob_tokens.end());
  m.set_prompt_logprobs(s.prompt_logprobs);
  m.set_num_logprobs(s.num_logprobs);
  if (!s.grammar.gbnf.empty()) encode(s.grammar, *m.mutable_grammar());
}

void encode(const TokenLogprob& top, proto::TokenLogprob& m) {
  m.set_token(top.token);
  m.set_logprob(top.logprob);
}

void encode(const KvStats& kv, proto::Kv& m) {
  m.set_total_blocks(kv.total_blocks);
  m.set_granted_blocks(kv.granted_blocks);
  m.set_written_blocks(kv.written_blocks);
  m.set_cached_blocks(kv.cached_blocks);
  m.set_free_blocks(kv.free_blocks);
  m.set_prefix_queries(kv.prefix_queries);
  m.set_prefix_hits(kv.prefix_hits);
  m.set_prefix_evictions(kv.prefix_evictions);
  m.set_unfilled_tokens(kv.unfilled_tokens);
}

// The outlook is in the load report already.
void encode(const Window& w, TimePoint now, proto::Window& m) {
  m.set_number(w.number);
  m.set_begin_ns(ns(w.begin - now));
  m.set_end_ns(ns(w.end - now));
  m.set_steps_left(w.steps_left);
  m.set_steps(w.plan.steps);
  m.set_bound(static_cast<std::uint32_t>(w.plan.bound));
  m.set_length_ns(ns(w.plan.length));
  m.set_demand_blocks(w.plan.demand_blocks);
  m.set_peak_blocks(w.plan.peak_blocks);
  m.set_room_blocks(w.plan.room_blocks);
  m.set_wanted_room_blocks(w.plan.wanted_room_blocks);
  for (const Grant& grant : w.plan.grants) {
    proto::Grant& g = *m.add_grants();
    g.set_sequence(grant.id.value);
    g.set_until_tokens(grant.until_tokens);
    g.set_new_blocks(grant.new_blocks);
  }
  for (const SequenceId id : w.plan.deferred) m.add_deferred(id.value);
}

void encode(const WindowStats& w, proto::WindowStats& m) {
  m.set_windows(w.windows);
  m.set_ended(w.ended);
  m.set_early_renewals(w.early_renewals);
  m.set_seconds_sum(w.seconds_sum);
  m.set_demand_blocks(w.demand_blocks);
  m.set_granted_blocks(w.granted_blocks);
  m.set_unused_blocks_sum(w.unused_blocks_sum);
  m.set_granted_blocks_sum(w.granted_blocks_sum);
  m.set_planning_seconds_sum(w.planning_seconds_sum);
  m.set_shortfall_prefixes(w.shortfall_prefixes);
  m.set_shortfall_shortened(w.shortfall_shortened);
  m.set_shortfall_admission(w.shortfall_admission);
  m.set_shortfall_move(w.shortfall_move);
  m.set_shortfall_pause(w.shortfall_pause);
  m.set_shortfall_recompute(w.shortfall_recompute);
}

void encode(const HostKvStats& host, proto::HostKv& m) {
  m.set_total_blocks(host.total_blocks);
  m.set_used_blocks(host.used_blocks);
  m.set_paused_sequences(host.paused_sequences);
  m.set_resumed(host.resumed);
  m.set_block_copy_seconds(host.block_copy_seconds);
}

void encode(const SequenceView& view, proto::SequenceView& m) {
  m.set_sequence(view.id.value);
  m.set_request(view.request.value);
  m.set_prompt_tokens(view.prompt_tokens);
  m.set_generated(view.generated);
  m.set_max_tokens(view.max_tokens);
  m.set_held_tokens(view.held_tokens);
  m.set_held_blocks(view.held_blocks);
  m.set_granted_tokens(view.granted_tokens);
}

}  // namespace

void encode(const FixedHistogram<12>& h, proto::Histogram& m) {
  m.mutable_counts()->Add(h.counts.begin(), h.counts.end());
  m.set_sum(h.sum);
}

void encode(const Request& request, TimePoint now, proto::Request& m) {
  m.set_id(request.id.value);
  m.mutable_prompt()->Add(request.prompt.begin(), request.prompt.end());
  m.set_max_tokens(request.max_tokens);
  m.set_priority(request.priority);
  encode(request.sampling, *m.mutable_sampling());
  m.set_arrival_ns(ns(request.arrival - now));
  m.mutable_output()->Add(request.output.begin(), request.output.end());
  m.set_attempt(request.attempt);
  m.set_trace_id(request.trace_id);
  m.set_tenant(request.tenant);
  m.set_length_class(request.length_class);
  m.set_length_hint(request.length_hint);
  m.set_report_progress(request.report_progress);
}

void encode(const TokenEvent& event, proto::TokenEvent& m) {
  m.set_request(event.request.value);
  m.set_attempt(event.attempt);
  m.set_index(event.index);
  m.set_has_token(event.has_token);
  m.set_token(event.token.token);
  m.set_end_of_generation(event.token.end_of_generation);
  m.set_logprob(event.token.logprob);
  for (const TokenLogprob& top : event.token.top) encode(top, *m.add_top());
  for (const ScoredToken& scored : event.prompt_scores) {
    proto::ScoredToken& s = *m.add_prompt_scores();
    s.set_token(scored.token);
    s.set_logprob(scored.logprob);
    s.set_rank(scored.rank);
    for (const TokenLogprob& top : scored.top) encode(top, *s.add_top());
  }
  m.set_finish(static_cast<std::uint32_t>(event.finish));
  m.set_cached_tokens(event.cached_tokens);
  m.set_queued_ns(ns(event.queued));
  m.set_is_progress(event.is_progress);
  m.set_computed_tokens(event.computed_tokens);
  if (event.finish != FinishReason::kError) return;
  m.set_error_code(static_cast<std::uint32_t>(event.error.code));
  m.set_error_message(event.error.message);
  m.set_retry_after_s(event.error.retry_after_s);
}

void encode(const LoadReport& r, proto::LoadReport& m) {
  m.set_sequence(r.sequence);
  m.set_role(static_cast<std::uint32_t>(r.role));
  m.set_draining(r.draining);
  m.set_waiting_requests(r.waiting_requests);
  m.set_waiting_tokens(r.waiting_tokens);
  m.set_uncomputed_tokens(r.uncomputed_tokens);
  m.set_running_sequences(r.running_sequences);
  m.set_context_tokens(r.context_tokens);
  m.set_block_tokens(r.block_tokens);
  m.set_total_blocks(r.total_blocks);
  m.set_granted_blocks(r.granted_blocks);
  m.set_free_blocks(r.free_blocks);
  m.set_window_number(r.window_number);
  m.set_window_end_ns(ns(r.window_end - r.measured_at));
  for (const DemandPoint& point : r.outlook) {
    proto::DemandPoint& p = *m.add_outlook();
    p.set_at_ns(ns(point.at - r.measured_at));
    p.set_demand_blocks(point.demand_blocks);
    p.set_free_blocks(point.free_blocks);
  }
  m.set_step_base(r.step.base);
  m.set_step_per_prefill_token(r.step.per_prefill_token);
  m.set_step_per_decode_sequence(r.step.per_decode_sequence);
  m.set_step_per_context_token(r.step.per_context_token);
  m.set_step_per_prefill_context(r.step.per_prefill_context);
  m.set_steps_observed(r.step.steps);
  m.set_prefill_steps_observed(r.step.prefill_steps);
  m.set_step_token_budget(r.step_token_budget);
  m.set_max_running(r.max_running);
  m.mutable_output_quantiles()->Add(r.output_quantiles.begin(), r.output_quantiles.end());
  m.set_device_total_bytes(r.device.total_bytes);
  m.set_device_free_bytes(r.device.free_bytes);
  m.set_device_busy(r.device.busy);
  for (const RequestId id : r.seen) m.add_seen(id.value);
}

void encode(const EngineStats& s, TimePoint now, proto::EngineStats& m) {
  encode(s.kv, *m.mutable_kv());
  encode(s.host, *m.mutable_host());
  encode(s.window, now, *m.mutable_window());
  encode(s.windows, *m.mutable_windows());
  for (const SequenceView& view : s.running) encode(view, *m.add_running());
  m.set_steps(s.steps);
  m.set_prompt_tokens(s.prompt_tokens);
  m.set_cached_prompt_tokens(s.cached_prompt_tokens);
  m.set_computed_prefill_tokens(s.computed_prefill_tokens);
  m.set_generated_tokens(s.generated_tokens);
  m.set_preemptions(s.preemptions);
  m.mutable_finished()->Add(s.finished.begin(), s.finished.end());
  m.set_forecast_error_tokens(s.forecast_error_tokens);
  m.set_step_time_error(s.step_time_error);
  m.set_busy_seconds(s.busy_seconds);
  encode(s.step_tokens, *m.mutable_step_tokens());
  encode(s.step_seconds, *m.mutable_step_seconds());
  m.mutable_speculation()->set_drafts(s.speculation.drafts);
  m.mutable_speculation()->set_draft_tokens(s.speculation.draft_tokens);
  m.mutable_speculation()->set_accepted_tokens(s.speculation.accepted_tokens);
}

}  // namespace sluice
