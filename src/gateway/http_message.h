// An HTTP request and its answer as handlers see them: plain values, without
// the HTTP library's types.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace sluice {

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // percent-decoded, without the query
  std::string query;
  std::string body;
  std::string authorization;  // headers that handlers read; empty when absent
  std::string api_key;        // x-api-key
  std::string origin;
  std::string objective;    // x-gateway-inference-objective: the request's importance
  std::string fairness_id;  // x-gateway-inference-fairness-id: the tenant
  std::string request_id;   // x-request-id of the client, or made up
  std::string traceparent;  // of a distributed trace (W3C Trace Context); empty unless well formed
  std::optional<std::size_t> client;  // the API key it came with, once the router has looked
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  std::vector<std::pair<std::string, std::string>> headers;  // besides the ones every answer has
};

// W3C Trace Context: "00-<32 hex>-<16 hex>-<2 hex>", ids not all zero.
[[nodiscard]] bool good_traceparent(std::string_view text);

[[nodiscard]] std::string_view http_reason(int status);

// Percent-decodes a path; false when an escape is broken or hides a zero byte.
[[nodiscard]] bool decode_path(std::string_view target, std::string& path, std::string& query);

}  // namespace sluice
