// From a parsed call to what the engine and the client need: prompts templated,
// tokenized and bounded, one Request and one Choice a generation.
#pragma once

#include <memory>
#include <vector>

#include "engine/request.h"
#include "gateway/choice.h"
#include "gateway/context.h"
#include "gateway/request_parser.h"
#include "gateway/response_format.h"

namespace sluice {

struct GenerationJob {
  // One each for a choice, in order. A request without an id yet; null: nothing
  // is to be generated (max_tokens 0).
  std::vector<std::unique_ptr<Request>> requests;
  std::vector<Choice> choices;
  std::unique_ptr<ResponseFormat> format;
  std::int32_t n = 1;     // choices a prompt
  std::int32_t keep = 0;  // of these, the likeliest ones that are the answer; 0: all
  bool stream = false;
};

[[nodiscard]] ApiResult<GenerationJob> build_chat_job(const GatewayContext& context, ChatCall call);
[[nodiscard]] ApiResult<GenerationJob> build_messages_job(const GatewayContext& context,
                                                          ChatCall call);
[[nodiscard]] ApiResult<GenerationJob> build_responses_job(const GatewayContext& context,
                                                           ResponsesCall call);
[[nodiscard]] ApiResult<GenerationJob> build_completion_job(const GatewayContext& context,
                                                            CompletionCall call);

// Drops all but the likeliest `keep` choices of each prompt, when all have ended.
void keep_best(GenerationJob& job);

// A chat as tokens, with what its parser needs.
struct TokenizedChat {
  ChatPrompt prompt;
  std::vector<Token> tokens;
};
[[nodiscard]] ApiResult<TokenizedChat> tokenize_chat(const GatewayContext& context,
                                                     const ChatRequest& chat);

}  // namespace sluice
