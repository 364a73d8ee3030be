#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

// Scores of prompt tokens computed + 1, computed + 2, ...; a restart brings known ones again.
void add_scores(Sequence& sequence, std::vector<ScoredToken>& scores) {
  for (std::size_t i = 0; i < scores.size(); ++i) {
    if (sequence.computed + static_cast<std::int32_t>(i) != sequence.scored) continue;
    sequence.scores.push_back(std::move(scores[i]));
    sequence.scored += 1;
  }
}

}  // namespace

Engine::Engine(const EngineOptions& options, ModelRunner& runner, const SamplerFactory& samplers,
               const Clock& clock, TokenSink& sink, const EnginePorts& ports)
    : options_(options),
      runner_(runner),
      samplers_(samplers),
      clock_(clock),
      sink_(sink),
      batch_scheduler_(options.batch),
      kv_(options.kv),
      host_(ports.host, clock, options.host_block_copy) {
  // A prompt's grant is counted in steps of the window's budget.
  CHECK_LE(options_.batch.max_step_tokens, options_.kv.window.step_token_budget);
  const bool read = options.learned_lengths.empty() || forecast_.restore(options.learned_lengths);
  CHECK(read);  // who has it from a file has checked it
}

// --- Requests in ---------------------------------------------------------------

Status Engine::accept(const Request& request) const {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  if (prompt == 0 || request.max_tokens < 1) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("a request needs at least 1 prompt token and 1 token to generate; "
                            "this one has {} and {}",
                            prompt, request.max_tokens));
  }
  if (std::ssize(request.output) >= request.max_tokens) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tokens are generated already, of {}", request.output.size(),
                            request.max_tokens));
  }
  const std::int64_t total = prompt + request.max_tokens;
  if (total > options_.max_context) {
    return fail(ErrorCode::kNeverFits,
                fmt::format("{} prompt tokens and {} to generate are {} tokens; the context is {}",
                            prompt, request.max_tokens, total, options_.max_context));
  }
  const std::int32_t blocks = kv_.blocks_for(total);
  if (blocks > options_.kv.num_blocks) {
    return fail(ErrorCode::kNeverFits,
                fmt::format("{} tokens need {} KV blocks of {} tokens; this instance has {}", total,
                            blocks, options_.kv.window.block_tokens, options_.kv.num_blocks));
  }
  if (waiting_.size() >= static_cast<std::size_t>(options_.max_waiting)) {
    return fail(ErrorCode::kBusy,
                fmt::format("{} requests wait on this instance already (limit {})", waiting_.size(),
                            options_.max_waiting));
  }
  return {};
}

void Engine::submit(std::unique_ptr<Request> request) {
  seen_.push_back(request->id);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = next_id_;
  ++next_id_.value;
  sequence->request = std::move(request);
  const Request& wanted = *sequence->request;
  sequence->tenant = tenants_.enter(wanted.tenant);

  Status status = accept(wanted);
  if (status) {
    auto sampler = samplers_.make(wanted.sampling, wanted.prompt);
    if (sampler) {
      sequence->sampler = std::move(*sampler);
      status = sequence->sampler->resume(wanted.output);
    } else {
      status = tl::unexpected(std::move(sampler).error());
    }
  }
  if (!status) {
    TokenEvent event = event_for(*sequence);
    event.finish = FinishReason::kError;
    event.error = std::move(status).error();
    finish(*sequence, std::move(event));
    return;
  }

  sequence->length_class = forecast_.class_of(wanted.length_class, wanted.length_hint);
  sequence->tokens = wanted.prompt;
  sequence->tokens.insert(sequence->tokens.end(), wanted.output.begin(), wanted.output.end());
  sequence->prompt_tokens = static_cast<std::int32_t>(wanted.prompt.size());
  waiting_.add(std::move(sequence));
}

void Engine::cancel(RequestId request) {
  const auto is_it = [request](const auto& s) { return s->here() && s->request->id == request; };
  if (auto it = std::find_if(running_.begin(), running_.end(), is_it); it != running_.end()) {
    kv_.release((*it)->id);
    forecast_.observe((*it)->generated(), /*censored=*/true, (*it)->length_class);
    end_cancelled(**it);
    running_.erase(it);
  } else if (const Sequence* waits = waiting_.find(request)) {
    const std::unique_ptr<Sequence> sequence = waiting_.take(*waits);
    end_cancelled(*sequence);
  }
}

void Engine::end_cancelled(Sequence& sequence) {
  TokenEvent event = event_for(sequence);
  event.finish = FinishReason::kCancelled;
  finish(sequence, std::move(event));
}

void Engine::fail_all(const Error& error) {
  const auto lost = [&](Sequence& sequence) {
    TokenEvent event = event_for(sequence);
    event.finish = FinishReason::kError;
    event.error = error;
    finish(sequence, std::move(event));
  };
  for (auto& sequence : running_) {
    if (!sequence->here()) continue;  // of another instance, or it would have to know
    kv_.release(sequence->id);
    lost(*sequence);
  }
  for (const auto& sequence : waiting_.items()) lost(*sequence);
  remove_finished();
  waiting_.clear();
  flush_events();
}

std::vector<RequestId> Engine::take_seen() {
  return std::exchange(seen_, {});
}

// --- The step ------------------------------------------------------------------

bool Engine::step() {
  renew_window();
  admit_waiting();
  const BatchPlan plan = batch_scheduler_.plan(candidates(), step_time_);  // pure
  // Who runs has a grant to write.
  CHECK(!plan.empty() ||
        std::none_of(running_.begin(), running_.end(), [](const auto& s) { return s->here(); }));
  if (!plan.empty()) compute(plan);
  flush_events();
  DCHECK((check_invariants(), true));
  return !plan.empty();
}

void Engine::renew_window() {
  if (!kv_.window_over(clock_.now())) return;
  renewed_for_arrival_ = false;
  // Where not even one step of everybody fits, the latest of the least important
  // gives way, and what it held makes room for the others.
  while (true) {
    const Window& window = open_window(/*early=*/false);
    if (window.plan.deferred.empty()) return;
    give_way(window.plan.deferred.front());
  }
}

const Window& Engine::open_window(bool early) {
  const TimePoint begin = clock_.now();
  std::vector<RunningLength> ages;
  ages.reserve(running_.size());
  for (const auto& s : running_) ages.push_back({s->generated(), s->length_class});
  forecast_.set_running(ages);
  const Window& window = kv_.open_window(begin, running_views(), step_time_, forecast_, early,
                                         blocks_for_next_arrival());
  const Duration cost = clock_.now() - begin;
  kv_.set_planning_cost(cost);
  stats_.windows.planning_seconds_sum += to_seconds(cost);
  return window;
}

// What the head of the queue would need in the longest window: the plan leaves
// that free where it can, so that it is admitted without waiting for a boundary.
std::int64_t Engine::blocks_for_next_arrival() const {
  if (waiting_.empty() || running_.size() >= static_cast<std::size_t>(options_.max_running)) {
    return 0;
  }
  const Sequence& next = *waiting_.order(tenants_).front();
  const std::int32_t kept = kv_.cached_prefix(next.tokens) / options_.kv.window.block_tokens;
  return kv_.blocks_for(std::int64_t{next.known()} +
                        std::min(options_.kv.window.max_steps, next.left_to_generate())) -
         kept;
}

RemedyCosts Engine::remedy_costs(const Sequence& sequence) {
  RemedyCosts costs;
  costs.recompute = recompute_cost(step_time_, sequence.computed, options_.batch.max_step_tokens);
  if (sequence.copy) return costs;  // not all of its KV is there yet
  const std::int32_t blocks = kv_.blocks_for(sequence.computed);
  if (host_.has_room(blocks)) costs.pause = host_.cost(blocks);
  return costs;
}

// The last rungs of the ladder, the cheapest by predicted time first.
void Engine::give_way(SequenceId id) {
  const auto it = std::ranges::find_if(running_, [id](const auto& s) { return s->id == id; });
  CHECK(it != running_.end());
  std::unique_ptr<Sequence> sequence = std::move(*it);
  running_.erase(it);
  if (sequence->presence == Presence::kArriving) {
    kv_.release(id);
    revoked_.push_back(sequence->request->id);
    return forget(std::move(sequence));
  }
  const std::span<const BlockId> blocks =
      kv_.table(id).first(static_cast<std::size_t>(kv_.blocks_for(sequence->computed)));
  if (cheapest(remedy_costs(*sequence)) == Remedy::kPause) {
    sequence->host_blocks = host_.save(blocks);
    stats_.windows.shortfall_pause += 1;
  } else {
    sequence->computed = 0;
    stats_.preemptions += 1;
  }
  kv_.release(id);
  sequence->copy.reset();
  sequence->restarts += 1;
  if (sequence->presence == Presence::kResting) {
    yielded_.push_back(std::move(sequence));
  } else {
    waiting_.add(std::move(sequence));
  }
}

void Engine::admit_waiting() {
  if (running_.size() >= static_cast<std::size_t>(options_.max_running)) return;
  std::vector<Sequence*> order = waiting_.order(tenants_);
  for (std::size_t i = 0; i < order.size();) {
    if (running_.size() >= static_cast<std::size_t>(options_.max_running)) return;
    Sequence& next = *order[i++];
    if (!next.paused() && prefix_is_coming(next)) continue;  // for its twin only; others may pass
    if (!try_admit(next)) return;  // in order: nothing overtakes for being small
    running_.push_back(waiting_.take(next));
    if (tenants_.present() <= 1) continue;
    order = waiting_.order(tenants_);  // its tenant has been served
    i = 0;
  }
}

bool Engine::try_admit(Sequence& s) {
  const AdmissionRequest request{.id = s.id,
                                 .tokens = s.tokens,
                                 .generated = s.generated(),
                                 .decode_cap = decode_cap(s),
                                 .priority = s.request->priority,
                                 .reuse_prefix = !s.wants_scores(),
                                 .restored_tokens = s.computed,
                                 .block_pause = host_.block_pause(),
                                 .length_class = s.length_class,
                                 .true_length = s.true_length()};
  auto admission = kv_.admit(request, clock_.now(), running_views(), step_time_, forecast_);
  if (!admission && admission.error() == Refusal::kWindow && !renewed_for_arrival_) {
    // A shorter window may have room for it: once a window, so that planning stays cheap.
    renewed_for_arrival_ = true;
    if (!running_.empty() && open_window(/*early=*/true).plan.deferred.empty()) {
      admission = kv_.admit(request, clock_.now(), running_views(), step_time_, forecast_);
    }
  }
  if (!admission) return false;
  s.copy = admission->copy;
  if (s.paused()) resume(s, admission->cached_tokens);
  s.computed = std::max(s.computed, admission->cached_tokens);
  if (!s.admitted_at) {
    s.admitted_at = clock_.now();
    s.cached_tokens = admission->cached_tokens;
    stats_.prompt_tokens += s.prompt_tokens;
    stats_.cached_prompt_tokens += admission->cached_tokens;
    tenants_.charge(s.tenant, Tenants::kPromptToken * (s.prompt_tokens - s.cached_tokens));
    report_progress(s);  // what it need not compute
  }
  return true;
}

// Its KV comes back from host memory, but for the blocks that are still here.
void Engine::resume(Sequence& s, std::int32_t cached_tokens) {
  const std::int32_t here = cached_tokens / options_.kv.window.block_tokens;
  const bool all_here = cached_tokens >= s.computed;
  if (all_here) {
    host_.drop(s.host_blocks);
  } else {
    host_.restore(s.host_blocks, static_cast<std::size_t>(here), kv_.table(s.id));
    kv_.written(s.id, std::span(s.tokens).first(static_cast<std::size_t>(s.computed)));
  }
  stats_.host.resumed += 1;
}

// True if a running sequence is about to compute a prefix that this one shares,
// well beyond what is kept already: waiting for it costs less than computing it
// twice (n choices of one prompt, a burst with one system prompt).
bool Engine::prefix_is_coming(const Sequence& waiting) const {
  if (!options_.kv.prefix_cache || waiting.wants_scores()) return false;
  const std::int32_t block = options_.kv.window.block_tokens;
  const std::int32_t worthwhile = 4 * block;
  std::int32_t kept = -1;
  for (const auto& other : running_) {
    if (other->left_to_compute() <= 1) continue;
    const auto end = std::mismatch(waiting.tokens.begin(), waiting.tokens.end(),
                                   other->tokens.begin(), other->tokens.end());
    const auto common = static_cast<std::int32_t>(end.first - waiting.tokens.begin());
    if (common < worthwhile || common <= other->computed) continue;
    if (kept < 0) kept = kv_.cached_prefix(waiting.tokens);
    if (common / block * block >= kept + worthwhile) return true;
  }
  return false;
}

void Engine::compute(const BatchPlan& plan) {
  StepInput input;
  input.rows.reserve(plan.rows.size());
  for (const BatchRow& row : plan.rows) {
    Sequence& s = *running_[row.candidate];
    if (s.copy) {
      input.copies.push_back(
          {.from = s.copy->from, .to = s.copy->to, .num_tokens = s.copy->num_tokens});
      s.copy.reset();
    }
    input.rows.push_back(
        {.tokens = std::span(s.tokens).subspan(static_cast<std::size_t>(s.computed),
                                               static_cast<std::size_t>(row.num_tokens)),
         .position = s.computed,
         .blocks = kv_.table(s.id),
         .sampler = row.samples ? s.sampler.get() : nullptr,
         .targets = s.targets(row.num_tokens),
         .num_top = s.request->sampling.prompt_logprobs,
         .drafts = s.drafter.drafts().first(static_cast<std::size_t>(row.drafts))});
  }
  Result<StepOutput> output = runner_.run(input);
  kv_.use_step();
  if (!output) {
    // Not the requests' fault: others of this kind may still serve them.
    fail_all({ErrorCode::kUnavailable, "a step failed: " + output.error().message, 0});
    return;
  }
  step_time_.observe(plan.shape, output->duration);
  stats_.steps += 1;
  stats_.busy_seconds += to_seconds(output->duration);
  stats_.computed_prefill_tokens += plan.shape.prefill_tokens - plan.draft_tokens;
  stats_.step_tokens.observe(plan.shape.prefill_tokens + plan.shape.decode_sequences);
  stats_.step_seconds.observe(to_seconds(output->duration));
  apply(plan, *output);
}

void Engine::apply(const BatchPlan& plan, StepOutput& output) {
  CHECK_EQ(output.sampled.size(), plan.rows.size());
  CHECK(output.scored.empty() || output.scored.size() == plan.rows.size());
  CHECK(output.after_drafts.empty() || output.after_drafts.size() == plan.rows.size());
  for (std::size_t i = 0; i < plan.rows.size(); ++i) apply_row(plan.rows[i], i, output);
  remove_finished();
}

void Engine::apply_row(const BatchRow& row, std::size_t index, StepOutput& output) {
  Sequence& s = *running_[row.candidate];
  if (!output.scored.empty()) add_scores(s, output.scored[index]);
  const auto computed = [&](std::int32_t tokens) {
    s.computed += tokens;
    kv_.written(s.id, std::span(s.tokens).first(static_cast<std::size_t>(s.computed)));
  };
  computed(row.num_tokens);
  report_progress(s);
  if (row.samples) apply_token(s, output.sampled[index]);
  if (row.drafts == 0) return;
  const auto right = static_cast<std::int32_t>(output.after_drafts[index].size());
  stats_.speculation.drafts += 1;
  stats_.speculation.draft_tokens += row.drafts;
  stats_.speculation.accepted_tokens += right;
  for (Result<SampledToken>& drawn : output.after_drafts[index]) {
    computed(1);  // the guess was what was drawn; what comes after a wrong one is not looked at
    apply_token(s, drawn);
  }
  s.drafter.observe(row.drafts, right, draft_rates_);
  if (s.sampler == nullptr) return;  // it has ended
  const std::int32_t room = kv_.granted_tokens(s.id) - s.computed;
  if (room < s.left_to_generate()) kv_.limit_steps(room);
}

// A restart computes again what was told of already: then there is no news.
void Engine::report_progress(Sequence& sequence) {
  if (!sequence.request->report_progress || sequence.generated() > 0) return;
  if (sequence.computed <= sequence.reported) return;
  sequence.reported = sequence.computed;
  TokenEvent event;
  event.request = sequence.request->id;
  event.attempt = sequence.request->attempt;
  event.cached_tokens = sequence.cached_tokens;
  event.queued = sequence.admitted_at.value_or(clock_.now()) - sequence.request->arrival;
  event.is_progress = true;
  event.computed_tokens = sequence.computed;
  events_.push_back(std::move(event));
}

void Engine::apply_token(Sequence& sequence, Result<SampledToken>& sampled) {
  TokenEvent event = event_for(sequence);
  if (!sampled) {
    event.finish = FinishReason::kError;
    event.error = std::move(sampled).error();
  } else if (sampled->end_of_generation) {
    event.finish = FinishReason::kStop;
    event.token = std::move(*sampled);
  } else {
    event.has_token = true;
    event.token = std::move(*sampled);
    sequence.tokens.push_back(event.token.token);
    tenants_.charge(sequence.tenant, Tenants::kGeneratedToken);
    stats_.generated_tokens += 1;
    if (sequence.left_to_generate() == 0) event.finish = FinishReason::kLength;
  }
  if (event.finish == FinishReason::kNone) {
    events_.push_back(std::move(event));
    return;
  }
  forecast_.observe(sequence.generated(), /*censored=*/event.finish != FinishReason::kStop,
                    sequence.length_class);
  kv_.release(sequence.id);
  finish(sequence, std::move(event));
}

// --- Events out ----------------------------------------------------------------

TokenEvent Engine::event_for(Sequence& sequence) const {
  TokenEvent event;
  event.request = sequence.request->id;
  event.attempt = sequence.request->attempt;
  event.index = sequence.tokens.empty() ? 0 : sequence.generated();
  if (!sequence.announced) {
    sequence.announced = true;
    event.cached_tokens = sequence.cached_tokens;
    event.prompt_scores = std::move(sequence.scores);
    event.queued = sequence.admitted_at.value_or(clock_.now()) - sequence.request->arrival;
  }
  return event;
}

// Marks the sequence by taking its sampler; remove_finished() or the caller
// drops it from its list.
void Engine::finish(Sequence& sequence, TokenEvent&& event) {
  CHECK(event.finish != FinishReason::kNone);
  stats_.finished[static_cast<std::size_t>(event.finish)] += 1;
  host_.drop(sequence.host_blocks);
  tenants_.leave(sequence.tenant);
  sequence.sampler.reset();
  events_.push_back(std::move(event));
}

void Engine::remove_finished() {
  std::erase_if(running_, [](const auto& s) { return s->sampler == nullptr; });
}

void Engine::flush_events() {
  if (events_.empty()) return;
  sink_.on_tokens(std::exchange(events_, {}));
}

// --- Views ---------------------------------------------------------------------

std::span<const RunningSequence> Engine::running_views() {
  views_.clear();
  for (const auto& s : running_) {
    views_.push_back(s->view(static_cast<std::int32_t>(kv_.table(s->id).size())));
    views_.back().decode_cap = decode_cap(*s);
  }
  return views_;
}

// A grant is never for more than a window: this caps no more than the forecast.
std::int32_t Engine::decode_cap(const Sequence& sequence) const {
  const std::int32_t left = sequence.left_to_generate();
  return options_.hands_over ? std::min(left, options_.kv.window.max_steps) : left;
}

std::vector<BatchCandidate> Engine::candidates() {
  std::vector<BatchCandidate> candidates;
  candidates.reserve(running_.size());
  for (const auto& s : running_) {
    s->guess(options_.draft_tokens, draft_rates_);
    candidates.push_back({.id = s->id,
                          .computed = s->computed,
                          .left_to_compute = s->left_to_compute(),
                          .granted_tokens = s->here() ? kv_.granted_tokens(s->id) : s->computed,
                          .decoding = s->decoding() || !s->here(),
                          .scored = s->wants_scores(),
                          .drafts = static_cast<std::int32_t>(s->drafter.drafts().size()),
                          .acceptance = s->drafter.acceptance()});
  }
  return candidates;
}

EngineLoad Engine::load() const {
  EngineLoad load;
  load.waiting_requests = static_cast<std::int32_t>(waiting_.size());
  load.running_sequences = static_cast<std::int32_t>(running_.size());
  for (const auto& s : waiting_.items()) {
    load.waiting_tokens += s->known();
    load.uncomputed_tokens += s->left_to_compute();
  }
  for (const auto& s : running_) {
    load.context_tokens += s->computed;
    if (s->here() && !s->decoding()) load.uncomputed_tokens += s->left_to_compute();
  }
  load.kv = kv_.stats();
  const Window& window = kv_.window();
  load.window_number = window.number;
  load.window_begin = window.begin;
  load.window_end = window.end;
  load.outlook = window.plan.outlook;
  load.step = step_time_.coefficients();
  load.steps_observed = step_time_.observations();
  load.prefill_steps_observed = step_time_.prefill_observations();
  constexpr std::int32_t kAny = 1 << 20;
  load.output_quantiles = {forecast_.quantile(0, kAny, 0.1), forecast_.quantile(0, kAny, 0.5),
                           forecast_.quantile(0, kAny, 0.9)};
  return load;
}

WindowStats Engine::window_stats() const {
  WindowStats stats = stats_.windows;  // what the engine itself counts
  const WindowUsage& usage = kv_.usage();
  const ShortfallCounts& shortfalls = kv_.shortfalls();
  stats.windows = kv_.window().number;
  stats.early_renewals = usage.early_renewals;
  stats.ended = usage.windows_ended;
  stats.seconds_sum = usage.seconds_sum;
  stats.demand_blocks = kv_.window().plan.demand_blocks;
  stats.granted_blocks = usage.window_granted_blocks;
  stats.unused_blocks_sum = usage.unused_blocks_sum;
  stats.granted_blocks_sum = usage.granted_blocks_sum;
  stats.shortfall_prefixes = shortfalls.prefix_blocks_dropped;
  stats.shortfall_shortened = shortfalls.windows_shortened;
  stats.shortfall_admission = shortfalls.refused_window + shortfalls.refused_forecast;
  stats.shortfall_recompute = stats_.preemptions;
  return stats;
}

EngineStats Engine::stats() const {
  EngineStats stats = stats_;
  stats.kv = kv_.stats();
  stats.host.total_blocks = host_.total_blocks();
  stats.host.used_blocks = host_.used_blocks();
  stats.host.block_copy_seconds = to_seconds(host_.block_copy());
  stats.host.paused_sequences = static_cast<std::int32_t>(
      std::ranges::count_if(waiting_.items(), [](const auto& s) { return s->paused(); }));
  stats.window = kv_.window();
  stats.windows = window_stats();
  stats.forecast_error_tokens = forecast_.error_tokens();
  stats.step_time_error = step_time_.relative_error();
  stats.running.reserve(running_.size());
  for (const auto& s : running_) {
    stats.running.push_back({.id = s->id,
                             .request = s->request->id,
                             .prompt_tokens = s->prompt_tokens,
                             .generated = s->generated(),
                             .max_tokens = s->request->max_tokens,
                             .held_tokens = s->computed,
                             .held_blocks = static_cast<std::int32_t>(kv_.table(s->id).size()),
                             .granted_tokens = kv_.granted_tokens(s->id)});
  }
  return stats;
}

void Engine::check_invariants() const {
  kv_.check_invariants();
  for (const auto& s : running_) {
    CHECK(s->left_to_compute() >= 1 || s->presence == Presence::kArriving);
    CHECK_LE(s->computed, kv_.granted_tokens(s->id));
    CHECK(!s->paused());
  }
  std::int32_t host_blocks = 0;
  for (const auto& s : yielded_) host_blocks += static_cast<std::int32_t>(s->host_blocks.size());
  for (const auto& s : waiting_.items()) {
    CHECK_EQ(kv_.blocks_for(s->computed), static_cast<std::int32_t>(s->host_blocks.size()));
    host_blocks += static_cast<std::int32_t>(s->host_blocks.size());
  }
  CHECK_EQ(host_blocks, host_.used_blocks());
}

}  // namespace sluice
