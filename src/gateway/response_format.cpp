#include "gateway/response_format.h"

#include <fmt/format.h>

#include <ctime>
#include <random>

#include "base/rng.h"

namespace sluice {

std::string make_id(std::string_view prefix) {
  thread_local Rng rng{std::random_device{}() + (std::uint64_t{std::random_device{}()} << 32)};
  return fmt::format("{}{:016x}{:016x}", prefix, rng(), rng());
}

std::int64_t unix_time() {
  return static_cast<std::int64_t>(std::time(nullptr));
}

void write_usage(JsonWriter& json, const Usage& usage) {
  json.begin_object()
      .member("prompt_tokens", usage.prompt_tokens)
      .member("completion_tokens", usage.completion_tokens)
      .member("total_tokens", usage.prompt_tokens + usage.completion_tokens);
  json.key("prompt_tokens_details")
      .begin_object()
      .member("cached_tokens", usage.cached_tokens)
      .end_object();
  json.end_object();
}

void write_timings(JsonWriter& json, const Usage& usage) {
  const auto write = [&json](const char* name, std::int64_t count, std::int64_t steps,
                             Duration time) {
    const double ms = to_seconds(time) * 1e3;
    const auto n = static_cast<double>(steps);
    const std::string prefix(name);
    json.member(prefix + "_n", count).member(prefix + "_ms", ms);
    json.member(prefix + "_per_token_ms", steps > 0 ? ms / n : 0.0);
    json.member(prefix + "_per_second", steps > 0 && ms > 0 ? n / ms * 1e3 : 0.0);
  };
  json.begin_object().member("cache_n", usage.cached_tokens);
  const std::int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  write("prompt", computed, computed, usage.prompt_time);
  // The first token comes with the prompt: it costs no step of its own.
  write("predicted", usage.completion_tokens, usage.completion_tokens - 1, usage.output_time);
  json.end_object();
}

void append_timings(std::string& out, const FormatOptions& options, const Usage& usage) {
  if (!options.timings || usage.completion_tokens == 0) return;
  out += ",\"timings\":";
  JsonWriter json(out);
  write_timings(json, usage);
}

void write_prompt_progress(JsonWriter& json, const PromptProgress& progress) {
  json.key("prompt_progress").begin_object().member("total", progress.total);
  json.member("cache", progress.cached).member("processed", progress.processed);
  json.member("time_ms", to_seconds(progress.time) * 1e3).end_object();
}

void write_sse(std::string& out, std::string_view json) {
  out.append("data: ").append(json).append("\n\n");
}

void write_tokens(JsonWriter& json, std::string_view key, std::span<const Token> tokens) {
  json.key(key).begin_array();
  for (const Token token : tokens) json.value(token);
  json.end_array();
}

void write_stop_reason(JsonWriter& json, const Choice& choice) {
  const auto& reason = choice.stop_reason();
  if (!reason) return;
  json.key("stop_reason");
  if (reason->text.empty()) {
    json.value(reason->token);
  } else {
    json.value(reason->text);
  }
}

namespace {

void write_scored(JsonWriter& json, const Choice& choice, Token token, float logprob,
                  std::int32_t rank) {
  json.key(std::to_string(token)).begin_object();
  json.member("logprob", logprob).member("rank", rank);
  json.member("decoded_token", choice.piece(token)).end_object();
}

}  // namespace

// A map from token to log probability for each token of the prompt; null for its first.
void write_prompt_logprobs(JsonWriter& json, const Choice& choice) {
  json.key("prompt_logprobs");
  if (!choice.wants_prompt_logprobs()) {
    json.null();
    return;
  }
  json.begin_array().null();
  for (const ScoredToken& scored : choice.prompt_scores()) {
    json.begin_object();
    write_scored(json, choice, scored.token, scored.logprob, scored.rank);
    std::int32_t rank = 0;
    for (const TokenLogprob& other : scored.top) {
      ++rank;
      if (other.token != scored.token) {
        write_scored(json, choice, other.token, other.logprob, rank);
      }
    }
    json.end_object();
  }
  json.end_array();
}

Usage usage_of(const Choice& choice) {
  return {choice.prompt_tokens(), choice.cached_tokens(), choice.generated_tokens(),
          choice.prompt_time(), choice.output_time()};
}

}  // namespace sluice
