#include "gateway/generation_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

// Reasons for Telemetry::on_rejected: a small fixed set.
std::string_view rejection_reason(int status) {
  switch (status) {
    case 429: return "busy";
    case 503: return "unavailable";
    case 400: return "never_fits";
    default: return "error";
  }
}

std::string name_in_logs(const HttpRequest& request) {
  if (request.traceparent.empty()) return request.request_id;
  return fmt::format("{} traceparent {}", request.request_id, request.traceparent);
}

}  // namespace

GenerationRun::GenerationRun(GatewayContext& context, Exchange& exchange, GenerationJob job,
                             ApiKeys::Use use)
    : context_(context),
      exchange_(exchange),
      job_(std::move(job)),
      use_(std::move(use)),
      mailbox_(exchange.executor(),
               static_cast<std::size_t>(context.options.limits.max_unsent_tokens) *
                   std::max<std::size_t>(1, job_.choices.size())),
      progress_(job_.choices.size()) {
  context_.runs[exchange_.thread_index()].insert(this);
}

GenerationRun::~GenerationRun() {
  context_.runs[exchange_.thread_index()].erase(this);
  cancel_all();
  context_.active.fetch_sub(counted_);
}

void GenerationRun::stop() {
  if (!error_) {
    error_ = to_api_error({ErrorCode::kUnavailable, "the server is shutting down", 0});
  }
  cancel_all();
  mailbox_.close();
}

std::optional<ApiError> GenerationRun::submit_all() {
  const auto wanted = static_cast<std::int32_t>(job_.requests.size());
  counted_ = wanted;
  if (context_.active.fetch_add(wanted) + wanted > context_.options.limits.max_requests) {
    Error busy{ErrorCode::kBusy,
               fmt::format("the limit of {} generations at a time is reached",
                           context_.options.limits.max_requests),
               1};
    return to_api_error(busy);
  }
  if (context_.draining) {
    return to_api_error({ErrorCode::kUnavailable, "the server is shutting down", 0});
  }
  for (std::size_t i = 0; i < job_.requests.size(); ++i) {
    if (!job_.requests[i]) continue;  // nothing to generate
    Request& request = *job_.requests[i];
    Progress& progress = progress_[i];
    progress.id = request.id = context_.router.add(exchange_.thread_index(), mailbox_);
    progress.arrival = request.arrival;
    request.trace_id = name_in_logs(exchange_.request());
    progress.submitted = true;
    if (auto sent = context_.serving->submit(std::move(job_.requests[i])); !sent) {
      context_.router.remove(exchange_.thread_index(), progress.id);
      progress.ended = true;
      return to_api_error(sent.error());
    }
  }
  return std::nullopt;
}

Task<void> GenerationRun::run() {
  if (auto refused = submit_all()) {
    context_.telemetry.on_rejected(rejection_reason(refused->status));
    cancel_all();
    const HttpResponse response = job_.format->refusal(*refused);
    co_await exchange_.respond(response);
    co_return;
  }
  // The client's end ends the work at once, wherever the coroutine stands.
  const auto give_up = [this] {
    cancel_all();
    mailbox_.close();
  };
  exchange_.watch(give_up);
  mailbox_.on_overflow([this, give_up] {
    give_up();
    exchange_.abort();
  });
  if (progress_.front().submitted) {
    // Nothing is written before the cluster's first word: it may be a refusal.
    co_await mailbox_.take(events_);
    if (abandoned()) co_return;
  }
  if (!job_.stream) {
    co_await answer_whole();
    co_return;
  }
  // An error before anything was sent is a status, not an event.
  job_.format->begin(job_.choices, out_);
  finish_empty();
  apply(events_);
  if (error_) {
    cancel_all();
    const HttpResponse response = job_.format->refusal(*error_);
    co_await exchange_.respond(response);
    co_return;
  }
  co_await answer_stream();
}

// With max_tokens 0 there is nothing to wait for.
void GenerationRun::finish_empty() {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (progress_[i].submitted) continue;
    TokenEvent nothing;
    nothing.finish = FinishReason::kLength;
    const Increment increment = job_.choices[i].on_event(nothing);
    if (job_.stream) job_.format->progress(job_.choices[i], increment, out_);
  }
}

Task<void> GenerationRun::answer_stream() {
  if (!exchange_.begin_stream("text/event-stream; charset=utf-8")) co_return;
  while (!all_finished() && !error_) {
    if (!co_await exchange_.write(out_)) co_return;
    out_.clear();
    co_await mailbox_.take(events_);
    if (abandoned()) co_return;
    apply(events_);
  }
  if (error_) {
    job_.format->error(*error_, out_);
    exchange_.close_after();
  } else {
    job_.format->end(job_.choices, usage(), out_);
  }
  // Two statements: g++ 12 lays out the frame wrongly for a co_await guarded by another.
  const bool sent = co_await exchange_.write(out_);
  if (sent) co_await exchange_.end_stream();
}

Task<void> GenerationRun::answer_whole() {
  finish_empty();
  for (;;) {
    apply(events_);
    if (error_ || all_finished()) break;
    co_await mailbox_.take(events_);
    if (abandoned()) co_return;
  }
  if (error_) {
    cancel_all();
    const HttpResponse response = job_.format->refusal(*error_);
    co_await exchange_.respond(response);
    co_return;
  }
  HttpResponse response;
  const Usage used = usage();  // of all, also of those that are dropped
  keep_best(job_);
  response.body = job_.format->whole(job_.choices, used);
  co_await exchange_.respond(response);
}

void GenerationRun::apply(const std::vector<TokenEvent>& events) {
  for (const TokenEvent& event : events) {
    // Ids of one run follow each other, in the order of the choices.
    const std::uint64_t index = event.request.value - progress_.front().id.value;
    if (index >= progress_.size() || progress_[index].ended) continue;
    apply_one(index, event);
  }
}

void GenerationRun::apply_one(std::size_t index, const TokenEvent& event) {
  Choice& choice = job_.choices[index];
  if (event.is_progress) {
    const Duration time = context_.clock.now() - progress_[index].arrival - event.queued;
    const PromptProgress news{choice.prompt_tokens(), event.cached_tokens, event.computed_tokens,
                              time};
    if (job_.stream && !error_) job_.format->prompt_progress(choice, news, out_);
    return;
  }
  note_times(progress_[index], event);
  if (const Progress& times = progress_[index]; times.first_token != TimePoint{}) {
    choice.set_times(times.first_token - times.arrival - times.queued,
                     times.last_token - times.first_token);
  }
  const Increment increment = choice.on_event(event);
  if (choice.finished()) {
    if (choice.stopped_early() && event.finish == FinishReason::kNone) {
      context_.serving->cancel(progress_[index].id);
    }
    end(index, choice.finish());
    if (choice.finish() == FinishReason::kError) return fail(index, to_api_error(choice.error()));
    if (choice.finish() == FinishReason::kCancelled) {
      return fail(index,
                  to_api_error({ErrorCode::kUnavailable, "the generation was cancelled", 0}));
    }
  }
  if (job_.stream && !error_) job_.format->progress(choice, increment, out_);
}

void GenerationRun::fail(std::size_t index, ApiError error) {
  if (progress_[index].first_token == TimePoint{}) {
    context_.telemetry.on_rejected(rejection_reason(error.status));
  }
  if (!error_) error_ = std::move(error);
}

void GenerationRun::note_times(Progress& progress, const TokenEvent& event) {
  if (event.index == 0) progress.queued = event.queued;
  if (!event.has_token) return;
  const TimePoint now = context_.clock.now();
  if (progress.first_token == TimePoint{}) {
    progress.first_token = now;
  } else {
    context_.telemetry.on_inter_token(now - progress.last_token);
  }
  progress.last_token = now;
}

void GenerationRun::end(std::size_t index, FinishReason reason) {
  Progress& progress = progress_[index];
  if (!progress.submitted || progress.ended) return;
  progress.ended = true;
  context_.router.remove(exchange_.thread_index(), progress.id);
  // Refused before it ran: that is a rejection, not an end.
  if (reason == FinishReason::kError && progress.first_token == TimePoint{}) return;
  const Choice& choice = job_.choices[index];
  RequestRecord record;
  record.finish = reason;
  record.prompt_tokens = choice.prompt_tokens();
  record.cached_tokens = choice.cached_tokens();
  record.generated_tokens = choice.generated_tokens();
  record.max_tokens = choice.max_tokens();
  record.n = job_.n;
  record.queued = progress.queued;
  if (progress.first_token != TimePoint{}) {
    record.first_token = progress.first_token - progress.arrival;
  }
  record.total = context_.clock.now() - progress.arrival;
  context_.telemetry.on_finished(record);
  const bool first_of_prompt = index % static_cast<std::size_t>(job_.n) == 0;
  use_.spend(record.generated_tokens + (first_of_prompt ? record.prompt_tokens : 0));
}

void GenerationRun::cancel_all() {
  for (std::size_t i = 0; i < progress_.size(); ++i) {
    if (!progress_[i].submitted || progress_[i].ended) continue;
    context_.serving->cancel(progress_[i].id);
    end(i, FinishReason::kCancelled);
  }
}

// Woken without an event, and not to tell the client of an error.
bool GenerationRun::abandoned() const {
  return exchange_.gone() || (events_.empty() && !error_);
}

bool GenerationRun::all_finished() const {
  return std::all_of(job_.choices.begin(), job_.choices.end(),
                     [](const Choice& choice) { return choice.finished(); });
}

Usage GenerationRun::usage() const {
  Usage total;
  for (std::size_t i = 0; i < job_.choices.size(); ++i) {
    const Usage one = usage_of(job_.choices[i]);
    total.completion_tokens += one.completion_tokens;
    if (i % static_cast<std::size_t>(job_.n) != 0) continue;  // a prompt counts once
    total.prompt_tokens += one.prompt_tokens;
    total.cached_tokens += one.cached_tokens;
  }
  total.prompt_time = job_.choices.front().prompt_time();
  total.output_time = job_.choices.front().output_time();
  return total;
}

}  // namespace sluice
