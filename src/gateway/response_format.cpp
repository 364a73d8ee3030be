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

void write_sse(std::string& out, std::string_view json) {
  out.append("data: ").append(json).append("\n\n");
}

Usage usage_of(const Choice& choice) {
  return {choice.prompt_tokens(), choice.cached_tokens(), choice.generated_tokens()};
}

}  // namespace sluice
