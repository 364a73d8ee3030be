// Any bytes as the body of a request: an answer or an error with a message, never anything else,
// and what is let through is inside the limits. The first byte picks the endpoint.
#include "gateway/request_parser.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"

namespace {

using namespace sluice;

const GatewayLimits kLimits;

void check_error(const ApiError& error) {
  CHECK(error.status >= 400);
  CHECK(!error.message.empty());
  CHECK(!to_json(error).empty());
}

void check_generation(const GenerationCall& call) {
  CHECK(call.n >= 1 && call.n <= kLimits.max_choices);
  CHECK(!call.max_tokens || *call.max_tokens >= 0);
  CHECK(call.stops.size() <= static_cast<std::size_t>(kLimits.max_stop_strings));
}

template <class T>
void check_result(const ApiResult<T>& result) {
  if (!result) check_error(result.error());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const ParseContext context{.limits = kLimits,
                             .model_id = "model",
                             .model_aliases = {},
                             .accept_any_model = true,
                             .vocabulary_size = 1000};
  switch (data[0] % 6) {
    case 0: {
      const auto call = parse_chat(body, context);
      call ? check_generation(call->generation) : check_error(call.error());
      break;
    }
    case 1: {
      const auto call = parse_completion(body, context);
      call ? check_generation(call->generation) : check_error(call.error());
      if (call) CHECK(!call->prompts.empty());
      break;
    }
    case 2: {
      const auto call = parse_responses(body, context);
      call ? check_generation(call->generation) : check_error(call.error());
      break;
    }
    case 3: check_result(parse_tokenize(body, context)); break;
    case 4: check_result(parse_detokenize(body, context)); break;
    default: check_result(parse_conversation(body, context)); break;
  }
  return 0;
}
