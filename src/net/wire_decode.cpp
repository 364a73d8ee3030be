#include <fmt/format.h>

#include <algorithm>

#include "net/wire.h"
#include "net/wire_reader.h"

namespace sluice {
namespace {

GrammarSpec read(Reader& in, const proto::Grammar& m) {
  GrammarSpec spec;
  spec.gbnf = in.text("grammar", m.gbnf());
  spec.prefill = in.text("grammar prefill", m.prefill());
  spec.lazy = m.lazy();
  if (in.list("trigger words", m.trigger_words())) {
    for (const std::string& word : m.trigger_words()) {
      spec.trigger_words.push_back(in.text("trigger word", word));
    }
  }
  if (in.list("trigger patterns", m.trigger_patterns())) {
    for (const std::string& pattern : m.trigger_patterns()) {
      spec.trigger_patterns.push_back(in.text("trigger pattern", pattern));
    }
  }
  if (in.list("trigger tokens", m.trigger_tokens())) {
    spec.trigger_tokens = in.tokens("trigger token", m.trigger_tokens());
  }
  return spec;
}

// What the numbers mean is the sampler's to check; it does so for every request.
SamplingParams read(Reader& in, const proto::Sampling& m) {
  SamplingParams s;
  s.temperature = m.temperature();
  s.top_k = m.top_k();
  s.top_p = m.top_p();
  s.min_p = m.min_p();
  s.typical_p = m.typical_p();
  s.presence_penalty = m.presence_penalty();
  s.frequency_penalty = m.frequency_penalty();
  s.repetition_penalty = m.repetition_penalty();
  s.repeat_last_n = m.repeat_last_n();
  if (m.bias_tokens_size() != m.biases_size()) {
    in.refuse(fmt::format("{} tokens have {} biases", m.bias_tokens_size(), m.biases_size()));
  } else if (in.list("logit bias", m.biases())) {
    for (int i = 0; i < m.biases_size(); ++i) {
      s.logit_bias.emplace_back(in.token("biased token", m.bias_tokens(i)), m.biases(i));
    }
  }
  s.seed = m.seed();
  s.min_tokens = m.min_tokens();
  s.ignore_eos = m.ignore_eos();
  s.forced_length = in.count("forced length", m.forced_length());
  if (in.list("stop tokens", m.stop_tokens())) {
    s.stop_tokens = in.tokens("stop token", m.stop_tokens());
  }
  if (in.list("allowed tokens", m.allowed_tokens())) {
    s.allowed_tokens = in.tokens("allowed token", m.allowed_tokens());
  }
  if (in.list("banned sequences", m.banned_sequences())) {
    for (const proto::TokenList& sequence : m.banned_sequences()) {
      if (sequence.tokens().empty()) in.refuse("a banned sequence has no tokens");
      s.banned_sequences.push_back(in.tokens("banned token", sequence.tokens()));
    }
  }
  if (in.list("logprob tokens", m.logprob_tokens())) {
    s.logprob_tokens = in.tokens("logprob token", m.logprob_tokens());
  }
  s.prompt_logprobs = m.prompt_logprobs();
  s.num_logprobs = m.num_logprobs();
  if (m.has_grammar()) s.grammar = read(in, m.grammar());
  return s;
}

std::vector<TokenLogprob> read_top(
    Reader& in, const google::protobuf::RepeatedPtrField<proto::TokenLogprob>& list) {
  std::vector<TokenLogprob> top;
  if (!in.list("top tokens", list)) return top;
  for (const proto::TokenLogprob& t : list) {
    top.push_back({in.token("top token", t.token()), t.logprob()});
  }
  return top;
}

KvStats read(Reader& in, const proto::Kv& m) {
  KvStats kv;
  kv.total_blocks = in.count("total blocks", m.total_blocks());
  kv.granted_blocks = in.count("granted blocks", m.granted_blocks());
  kv.written_blocks = in.count("written blocks", m.written_blocks());
  kv.cached_blocks = in.count("cached blocks", m.cached_blocks());
  kv.free_blocks = in.count("free blocks", m.free_blocks());
  kv.prefix_queries = in.count("prefix queries", m.prefix_queries(), kMaxCounter);
  kv.prefix_hits = in.count("prefix hits", m.prefix_hits(), kMaxCounter);
  kv.unfilled_tokens = in.count("unfilled tokens", m.unfilled_tokens());
  kv.prefix_evictions = in.count("prefix evictions", m.prefix_evictions(), kMaxCounter);
  return kv;
}

Window read(Reader& in, const proto::Window& m, TimePoint now) {
  Window w;
  w.number = in.count("window number", m.number(), kMaxCounter);
  w.begin = now + in.span("window begin", m.begin_ns());
  w.end = now + in.span("window end", m.end_ns());
  w.steps_left = in.count("steps left", m.steps_left());
  w.plan.steps = in.count("steps", m.steps());
  w.plan.bound = in.enumeration("window bound", m.bound(), WindowBound::kIdle);
  w.plan.length = in.span("window length", m.length_ns());
  w.plan.demand_blocks = in.count("demand blocks", m.demand_blocks());
  w.plan.peak_blocks = in.count("peak blocks", m.peak_blocks());
  w.plan.room_blocks = in.count("room blocks", m.room_blocks());
  w.plan.wanted_room_blocks = in.count("wanted room blocks", m.wanted_room_blocks());
  if (in.list("grants", m.grants())) {
    for (const proto::Grant& grant : m.grants()) {
      w.plan.grants.push_back({.id = SequenceId{grant.sequence()},
                               .until_tokens = in.count("granted tokens", grant.until_tokens()),
                               .new_blocks = in.count("new blocks", grant.new_blocks())});
    }
  }
  if (in.list("deferred", m.deferred())) {
    for (const std::uint64_t id : m.deferred()) w.plan.deferred.push_back(SequenceId{id});
  }
  return w;
}

WindowStats read(Reader& in, const proto::WindowStats& m) {
  WindowStats w;
  w.windows = in.count("windows", m.windows(), kMaxCounter);
  w.ended = in.count("windows ended", m.ended(), kMaxCounter);
  w.early_renewals = in.count("early renewals", m.early_renewals(), kMaxCounter);
  w.seconds_sum = m.seconds_sum();
  w.demand_blocks = in.count("demand blocks", m.demand_blocks());
  w.granted_blocks = in.count("granted blocks", m.granted_blocks());
  w.unused_blocks_sum = in.count("unused blocks", m.unused_blocks_sum(), kMaxCounter);
  w.granted_blocks_sum = in.count("granted blocks", m.granted_blocks_sum(), kMaxCounter);
  w.planning_seconds_sum = m.planning_seconds_sum();
  w.shortfall_prefixes = in.count("shortfalls", m.shortfall_prefixes(), kMaxCounter);
  w.shortfall_shortened = in.count("shortfalls", m.shortfall_shortened(), kMaxCounter);
  w.shortfall_admission = in.count("shortfalls", m.shortfall_admission(), kMaxCounter);
  w.shortfall_move = in.count("shortfalls", m.shortfall_move(), kMaxCounter);
  w.shortfall_pause = in.count("shortfalls", m.shortfall_pause(), kMaxCounter);
  w.shortfall_recompute = in.count("shortfalls", m.shortfall_recompute(), kMaxCounter);
  return w;
}

HostKvStats read(Reader& in, const proto::HostKv& m) {
  return {.total_blocks = in.count("host blocks", m.total_blocks()),
          .used_blocks = in.count("host blocks", m.used_blocks()),
          .paused_sequences = in.count("paused sequences", m.paused_sequences()),
          .resumed = in.count("resumed sequences", m.resumed(), kMaxCounter),
          .block_copy_seconds = m.block_copy_seconds()};
}

SequenceView read(Reader& in, const proto::SequenceView& m) {
  return {.id = SequenceId{m.sequence()},
          .request = RequestId{m.request()},
          .prompt_tokens = in.count("prompt tokens", m.prompt_tokens()),
          .generated = in.count("generated tokens", m.generated()),
          .max_tokens = in.count("max tokens", m.max_tokens()),
          .held_tokens = in.count("held tokens", m.held_tokens()),
          .held_blocks = in.count("held blocks", m.held_blocks()),
          .granted_tokens = in.count("granted tokens", m.granted_tokens())};
}

}  // namespace

Result<Request> decode(const proto::Request& m, TimePoint now, const WireLimits& limits) {
  Reader in(limits);
  Request r;
  r.id = RequestId{m.id()};
  r.prompt = in.tokens("prompt", m.prompt());
  r.max_tokens = in.within<std::int32_t>("max_tokens", m.max_tokens(), 1, limits.max_sequence);
  r.priority = m.priority();
  r.sampling = read(in, m.sampling());
  r.arrival = now + in.span("arrival", m.arrival_ns());
  r.output = in.tokens("output", m.output());
  r.attempt = in.count("attempt", m.attempt());
  r.trace_id = in.text("trace id", m.trace_id());
  r.tenant = in.text("tenant", m.tenant());
  r.length_class = in.text("length class", m.length_class());
  r.length_hint = in.count("length hint", m.length_hint());
  r.report_progress = m.report_progress();
  return in.result(std::move(r));
}

Result<TokenEvent> decode(const proto::TokenEvent& m, const WireLimits& limits) {
  Reader in(limits);
  TokenEvent e;
  e.request = RequestId{m.request()};
  e.attempt = in.count("attempt", m.attempt());
  e.index = in.count("index", m.index());
  e.has_token = m.has_token();
  e.token.token = in.token("token", m.token());
  e.token.end_of_generation = m.end_of_generation();
  e.token.logprob = m.logprob();
  e.token.top = read_top(in, m.top());
  if (in.holds("prompt scores", static_cast<std::size_t>(m.prompt_scores_size()),
               limits.max_sequence)) {
    for (const proto::ScoredToken& s : m.prompt_scores()) {
      e.prompt_scores.push_back({.token = in.token("prompt token", s.token()),
                                 .logprob = s.logprob(),
                                 .rank = in.count("rank", s.rank()),
                                 .top = read_top(in, s.top())});
    }
  }
  e.finish = in.enumeration("finish reason", m.finish(), FinishReason::kError);
  e.cached_tokens = in.count("cached tokens", m.cached_tokens());
  e.queued = in.span("time in queue", m.queued_ns());
  e.error.code = in.enumeration("error code", m.error_code(), ErrorCode::kInternal);
  e.error.message = in.text("error message", m.error_message());
  e.error.retry_after_s = in.count("retry after", m.retry_after_s());
  e.is_progress = m.is_progress();
  e.computed_tokens = in.count("computed tokens", m.computed_tokens());
  const bool says = e.has_token || e.finish != FinishReason::kNone;
  if (says == e.is_progress) in.refuse(says ? "an event says two things" : "an event says nothing");
  return in.result(std::move(e));
}

Result<LoadReport> decode(const proto::LoadReport& m, TimePoint now, const WireLimits& limits) {
  Reader in(limits);
  LoadReport r;
  r.sequence = m.sequence();
  r.measured_at = now;
  r.role = in.enumeration("role", m.role(), Role::kDecode);
  r.draining = m.draining();
  r.waiting_requests = in.count("waiting requests", m.waiting_requests());
  r.waiting_tokens = in.count("waiting tokens", m.waiting_tokens());
  r.uncomputed_tokens = in.count("uncomputed tokens", m.uncomputed_tokens());
  r.running_sequences = in.count("running sequences", m.running_sequences());
  r.context_tokens = in.count("context tokens", m.context_tokens());
  r.block_tokens = in.within<std::int32_t>("block tokens", m.block_tokens(), 1, 1 << 16);
  r.total_blocks = in.within<std::int64_t>("total blocks", m.total_blocks(), 0, kMaxInt);
  r.granted_blocks = in.count("granted blocks", m.granted_blocks());
  r.free_blocks = in.count("free blocks", m.free_blocks());
  r.window_number = in.count("window number", m.window_number(), kMaxCounter);
  r.window_end = now + in.span("window end", m.window_end_ns());
  if (in.holds("outlook", static_cast<std::size_t>(m.outlook_size()), 64)) {
    for (const proto::DemandPoint& point : m.outlook()) {
      r.outlook.push_back({.at = now + in.span("outlook", point.at_ns()),
                           .demand_blocks = in.count("demand blocks", point.demand_blocks()),
                           .free_blocks = in.count("free blocks", point.free_blocks())});
    }
  }
  r.step = {m.step_base(),
            m.step_per_prefill_token(),
            m.step_per_decode_sequence(),
            m.step_per_context_token(),
            m.step_per_prefill_context(),
            in.count("steps observed", m.steps_observed(), kMaxCounter),
            in.count("prefill steps observed", m.prefill_steps_observed(), kMaxCounter)};
  for (const double cost : {r.step.base, r.step.per_prefill_token, r.step.per_decode_sequence,
                            r.step.per_context_token, r.step.per_prefill_context}) {
    (void)in.within("step cost", cost, 0.0, 1e6);  // also refuses what is not a number
  }
  r.step_token_budget = in.within<std::int32_t>("step budget", m.step_token_budget(), 1, kMaxInt);
  r.max_running = in.count("max running", m.max_running());
  if (m.output_quantiles_size() == std::ssize(r.output_quantiles)) {
    for (int i = 0; i < m.output_quantiles_size(); ++i) {
      r.output_quantiles[static_cast<std::size_t>(i)] =
          in.count("output quantile", m.output_quantiles(i));
    }
  } else {
    in.refuse(fmt::format("{} output quantiles; {} were due", m.output_quantiles_size(),
                          r.output_quantiles.size()));
  }
  r.device = {in.count("device memory", m.device_total_bytes(), kMaxCounter),
              in.count("free device memory", m.device_free_bytes(), kMaxCounter),
              in.within("device busy", m.device_busy(), 0.0, 1.0)};
  if (in.list("seen", m.seen())) {
    for (const std::uint64_t id : m.seen()) r.seen.push_back(RequestId{id});
  }
  return in.result(std::move(r));
}

Result<EngineStats> decode(const proto::EngineStats& m, TimePoint now, const WireLimits& limits) {
  Reader in(limits);
  EngineStats s;
  s.kv = read(in, m.kv());
  s.host = read(in, m.host());
  s.window = read(in, m.window(), now);
  s.windows = read(in, m.windows());
  if (in.list("running", m.running())) {
    for (const proto::SequenceView& view : m.running()) s.running.push_back(read(in, view));
  }
  s.steps = in.count("steps", m.steps(), kMaxCounter);
  s.prompt_tokens = in.count("prompt tokens", m.prompt_tokens(), kMaxCounter);
  s.cached_prompt_tokens = in.count("cached tokens", m.cached_prompt_tokens(), kMaxCounter);
  s.computed_prefill_tokens = in.count("prefill tokens", m.computed_prefill_tokens(), kMaxCounter);
  s.generated_tokens = in.count("generated tokens", m.generated_tokens(), kMaxCounter);
  s.preemptions = in.count("preemptions", m.preemptions(), kMaxCounter);
  if (m.finished_size() == std::ssize(s.finished)) {
    for (int i = 0; i < m.finished_size(); ++i) {
      s.finished[static_cast<std::size_t>(i)] = in.count("finished", m.finished(i), kMaxCounter);
    }
  } else {
    in.refuse(fmt::format("{} counts of finish reasons; {} were due", m.finished_size(),
                          s.finished.size()));
  }
  const proto::SpeculationStats& guesses = m.speculation();
  s.speculation.drafts = in.count("drafts", guesses.drafts(), kMaxCounter);
  s.speculation.draft_tokens = in.count("draft tokens", guesses.draft_tokens(), kMaxCounter);
  s.speculation.accepted_tokens =
      in.count("accepted tokens", guesses.accepted_tokens(), kMaxCounter);
  s.forecast_error_tokens = m.forecast_error_tokens();
  s.step_time_error = m.step_time_error();
  s.busy_seconds = m.busy_seconds();
  read(in, m.step_tokens(), s.step_tokens);
  read(in, m.step_seconds(), s.step_seconds);
  return in.result(std::move(s));
}

}  // namespace sluice
