// Errors as OpenAI's clients read them, and the one table from ErrorCode to HTTP.
#pragma once

#include <cstdint>
#include <string>
#include <tl/expected.hpp>

#include "base/result.h"
#include "gateway/http_message.h"

namespace sluice {

struct ApiError {
  int status = 400;
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;  // the field that is wrong; empty: null
  std::string code;   // empty: null
  std::int32_t retry_after_s = 0;
  std::int64_t prompt_tokens = 0;  // with code context_length_exceeded, both numbers
  std::int64_t context_tokens = 0;
};

template <class T>
using ApiResult = tl::expected<T, ApiError>;

[[nodiscard]] tl::unexpected<ApiError> bad_request(std::string message, std::string param = {},
                                                   std::string code = {});

// What an error of the layers below is for a client.
[[nodiscard]] ApiError to_api_error(const Error& error, std::string param = {});

// {"error":{"message":...,"type":...,"param":...,"code":...}}
[[nodiscard]] std::string to_json(const ApiError& error);
[[nodiscard]] HttpResponse to_response(const ApiError& error);

}  // namespace sluice
