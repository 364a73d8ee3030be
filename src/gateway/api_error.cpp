#include "gateway/api_error.h"

#include <algorithm>
#include <utility>

#include "gateway/json_writer.h"

namespace sluice {

tl::unexpected<ApiError> bad_request(std::string message, std::string param, std::string code) {
  ApiError error;
  error.message = std::move(message);
  error.param = std::move(param);
  error.code = std::move(code);
  return tl::unexpected<ApiError>(std::move(error));
}

ApiError to_api_error(const Error& error, std::string param) {
  ApiError result;
  result.message = error.message;
  result.param = std::move(param);
  const auto set = [&result](int status, const char* type, const char* code) {
    result.status = status;
    result.type = type;
    result.code = code;
  };
  switch (error.code) {
    case ErrorCode::kInvalidArgument: set(400, "invalid_request_error", ""); break;
    case ErrorCode::kNotFound: set(404, "invalid_request_error", "not_found"); break;
    case ErrorCode::kUnauthenticated: set(401, "authentication_error", "invalid_api_key"); break;
    case ErrorCode::kNeverFits: set(400, "invalid_request_error", "never_fits"); break;
    case ErrorCode::kBusy:
      set(429, "rate_limit_error", "busy");
      result.retry_after_s = std::max(1, error.retry_after_s);
      break;
    case ErrorCode::kDeadlineExceeded: set(504, "timeout_error", "deadline_exceeded"); break;
    case ErrorCode::kCancelled: set(499, "cancelled", "cancelled"); break;
    case ErrorCode::kUnavailable:
      set(503, "service_unavailable", "unavailable");
      result.retry_after_s = std::max(1, error.retry_after_s);
      break;
    case ErrorCode::kTransport: set(502, "server_error", "transport"); break;
    case ErrorCode::kInternal: set(500, "server_error", "internal"); break;
  }
  return result;
}

std::string to_json(const ApiError& error) {
  std::string text;
  JsonWriter json(text);
  json.begin_object().key("error").begin_object();
  json.member("message", error.message).member("type", error.type);
  json.key("param").string_or_null(error.param);
  json.key("code").string_or_null(error.code);
  if (error.context_tokens > 0) {
    json.member("n_prompt_tokens", error.prompt_tokens).member("n_ctx", error.context_tokens);
  }
  json.end_object().end_object();
  return text;
}

HttpResponse to_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = to_json(error);
  if (error.retry_after_s > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

}  // namespace sluice
