// How an answer is written: the dialects of OpenAI's API, and Anthropic's, behind one port.
//
// A format appends to `out`: whole server-sent events for a stream, or one JSON
// text. It holds no generation state beyond what its dialect needs (numbering).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "gateway/api_error.h"
#include "gateway/choice.h"
#include "gateway/json_writer.h"
#include "gateway/request_parser.h"

namespace sluice {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
  Duration prompt_time{};  // of the first choice, as Choice has it
  Duration output_time{};  // the same
};

// Of a prompt that is being computed.
struct PromptProgress {
  std::int32_t total = 0;
  std::int32_t cached = 0;
  std::int32_t processed = 0;  // with the cached ones
  Duration time{};
};

struct FormatOptions {
  std::string model;
  std::string fingerprint;
  bool include_usage = false;
  bool continuous_usage = false;
  bool timings = false;
  std::optional<std::string> shown_prompt{};  // a chat's, as the model reads it
};

class ResponseFormat {
 public:
  virtual ~ResponseFormat() = default;
  virtual void begin(std::span<const Choice> choices, std::string& out) = 0;
  virtual void progress(const Choice& choice, const Increment& increment, std::string& out) = 0;
  // Where the client asked for it, before any progress of the answer.
  virtual void prompt_progress(const Choice&, const PromptProgress&, std::string&) {}
  virtual void end(std::span<const Choice> choices, const Usage& usage, std::string& out) = 0;
  virtual void error(const ApiError& error, std::string& out) = 0;
  // Instead of an answer, before anything was sent.
  [[nodiscard]] virtual HttpResponse refusal(const ApiError& error) const {
    return to_response(error);
  }
  [[nodiscard]] virtual std::string whole(std::span<const Choice> choices, const Usage& usage) = 0;
};

[[nodiscard]] std::unique_ptr<ResponseFormat> make_chat_format(FormatOptions options);
[[nodiscard]] std::unique_ptr<ResponseFormat> make_completion_format(FormatOptions options);
[[nodiscard]] std::unique_ptr<ResponseFormat> make_messages_format(FormatOptions options);
[[nodiscard]] std::unique_ptr<ResponseFormat> make_responses_format(FormatOptions options,
                                                                    const ResponsesCall& call);

// An error as Anthropic's clients read it.
[[nodiscard]] HttpResponse messages_error(const ApiError& error);

// Shared by the dialects.
[[nodiscard]] std::string make_id(std::string_view prefix);
[[nodiscard]] std::int64_t unix_time();
void write_usage(JsonWriter& json, const Usage& usage);
// llama.cpp's: counts, milliseconds and rates.
void write_timings(JsonWriter& json, const Usage& usage);
// The same as a member behind others, where there is something to tell.
void append_timings(std::string& out, const FormatOptions& options, const Usage& usage);
void write_prompt_progress(JsonWriter& json, const PromptProgress& progress);
void write_sse(std::string& out, std::string_view json);
[[nodiscard]] Usage usage_of(const Choice& choice);
// vLLM's fields, where they are asked for.
void write_tokens(JsonWriter& json, std::string_view key, std::span<const Token> tokens);
void write_stop_reason(JsonWriter& json, const Choice& choice);
void write_prompt_logprobs(JsonWriter& json, const Choice& choice);

}  // namespace sluice
