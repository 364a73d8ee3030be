// From an OpenAI request's body to typed values, everything in them checked.
//
// A function of the body and the context: no I/O, any thread, never throws on
// input. What it lets through is inside every limit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "gateway/api_error.h"
#include "gateway/gateway.h"
#include "model/chat.h"
#include "model/sampling_params.h"

namespace sluice {

inline constexpr std::int32_t kMostPriority = 1'000'000;  // and as much below 0

// What a request is checked against.
struct ParseContext {
  const GatewayLimits& limits;
  std::string model_id;
  std::vector<std::string> model_aliases;
  bool accept_any_model = false;
  std::int32_t vocabulary_size = 0;
  bool benchmark = false;  // requests may say how long their output will be
};

// What all kinds of generation have in common.
struct GenerationCall {
  SamplingParams sampling;  // without the grammar that a chat template adds
  bool has_seed = false;
  std::optional<std::int32_t> max_tokens;  // absent: as many as fit; 0 only for completions
  std::int32_t n = 1;
  std::vector<std::string> stops;
  std::vector<std::string> bad_words;           // never in the output
  bool include_stop = false;                    // a stop string is part of the answer
  bool keep_special = false;                    // so is the text of control tokens
  std::optional<std::int32_t> truncate_prompt;  // to that many tokens; 0: to what fits
  bool truncate_right = false;                  // keep the beginning, not the end
  bool return_token_ids = false;
  bool tokens_as_ids = false;    // "token_id:7" in log probabilities
  bool prompt_logprobs = false;  // as a field of their own
  bool timings = false;          // as llama.cpp has them
  bool progress = false;         // a stream tells of the prompt (llama.cpp)
  bool verbose = false;          // a chat's answer shows its prompt (llama.cpp)
  bool stream = false;
  bool include_usage = false;
  bool continuous_usage = false;  // usage in every chunk (vLLM)
  std::int32_t priority = 0;
  std::string length_class;      // sluice_length_class: requests with outputs alike
  std::int32_t length_hint = 0;  // sluice_length_hint: expected output tokens
};

struct ChatCall {
  GenerationCall generation;
  ChatRequest chat;
};

// What a response repeats of its request.
struct ResponsesEcho {
  std::optional<std::string> instructions;
  std::optional<std::int32_t> max_output_tokens;
  std::string tools_json;
  std::string tool_choice_json;
  std::string metadata_json;
  std::string format_json;
};

struct ResponsesCall {
  GenerationCall generation;
  ChatRequest chat;
  ResponsesEcho echo;
};

// Of no prompt at all (null) the model goes on as from the beginning of a text.
using Prompt = std::variant<std::string, std::vector<Token>, std::monostate>;

struct CompletionCall {
  GenerationCall generation;
  std::vector<Prompt> prompts;  // at least one
  bool echo = false;
  std::int32_t best_of = 0;  // generations a prompt, of which the n likeliest are the answer
  bool add_special = true;   // the model's begin-of-sequence token in front of a text
  std::string json_schema;   // the text must match it; empty: free
};

struct TokenizeCall {
  std::string text;
  std::optional<ChatRequest> chat;  // instead of the text
  bool add_special = false;
  bool parse_special = true;
  bool with_pieces = false;
};

[[nodiscard]] ApiResult<ChatCall> parse_chat(std::string_view body, const ParseContext& context);
[[nodiscard]] ApiResult<CompletionCall> parse_completion(std::string_view body,
                                                         const ParseContext& context);
// OpenAI's Responses, as far as it can be said as a chat.
[[nodiscard]] ApiResult<ResponsesCall> parse_responses(std::string_view body,
                                                       const ParseContext& context);
// Anthropic's Messages as a chat; and the conversation alone, to be counted.
[[nodiscard]] ApiResult<ChatCall> parse_messages(std::string_view body,
                                                 const ParseContext& context);
[[nodiscard]] ApiResult<ChatRequest> parse_messages_conversation(std::string_view body,
                                                                 const ParseContext& context);
[[nodiscard]] ApiResult<TokenizeCall> parse_tokenize(std::string_view body,
                                                     const ParseContext& context);
[[nodiscard]] ApiResult<std::vector<Token>> parse_detokenize(std::string_view body,
                                                             const ParseContext& context);
// The conversation alone, for /apply-template.
[[nodiscard]] ApiResult<ChatRequest> parse_conversation(std::string_view body,
                                                        const ParseContext& context);

}  // namespace sluice
