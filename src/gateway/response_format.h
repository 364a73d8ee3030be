// How an answer is written: the three dialects of OpenAI's API behind one port.
//
// A format appends to `out`: whole server-sent events for a stream, or one JSON
// text. It holds no generation state beyond what its dialect needs (numbering).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "gateway/api_error.h"
#include "gateway/choice.h"
#include "gateway/json_writer.h"
#include "gateway/request_parser.h"

namespace sluice {

struct Usage {
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;
  std::int64_t completion_tokens = 0;
};

struct FormatOptions {
  std::string model;
  std::string fingerprint;
  bool include_usage = false;
  bool continuous_usage = false;
};

class ResponseFormat {
 public:
  virtual ~ResponseFormat() = default;
  virtual void begin(std::span<const Choice> choices, std::string& out) = 0;
  virtual void progress(const Choice& choice, const Increment& increment, std::string& out) = 0;
  virtual void end(std::span<const Choice> choices, const Usage& usage, std::string& out) = 0;
  virtual void error(const ApiError& error, std::string& out) = 0;
  [[nodiscard]] virtual std::string whole(std::span<const Choice> choices, const Usage& usage) = 0;
};

[[nodiscard]] std::unique_ptr<ResponseFormat> make_chat_format(FormatOptions options);
[[nodiscard]] std::unique_ptr<ResponseFormat> make_completion_format(FormatOptions options);
[[nodiscard]] std::unique_ptr<ResponseFormat> make_responses_format(FormatOptions options,
                                                                    const ResponsesCall& call);

// Shared by the dialects.
[[nodiscard]] std::string make_id(std::string_view prefix);
[[nodiscard]] std::int64_t unix_time();
void write_usage(JsonWriter& json, const Usage& usage);
void write_sse(std::string& out, std::string_view json);
[[nodiscard]] Usage usage_of(const Choice& choice);

}  // namespace sluice
