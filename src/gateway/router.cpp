#include "gateway/router.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "gateway/api_error.h"

namespace sluice {

namespace {

bool matches(std::string_view pattern, std::string_view path) {
  if (!pattern.ends_with('*')) return pattern == path;
  pattern.remove_suffix(1);
  return path.size() > pattern.size() && path.starts_with(pattern);
}

// "http://localhost:3000" and the like, with or without a port.
bool is_local(std::string_view origin) {
  const auto scheme = origin.find("://");
  if (scheme == std::string_view::npos) return false;
  std::string_view host = origin.substr(scheme + 3);
  const auto bracket = host.starts_with('[') ? host.find(']') : std::string_view::npos;
  if (bracket != std::string_view::npos) {
    host = host.substr(0, bracket + 1);
  } else {
    host = host.substr(0, host.find(':'));
  }
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]";
}

}  // namespace

bool Router::authorized(HttpRequest& request) const {
  if (options_.keys.empty()) return true;
  constexpr std::string_view kBearer = "bearer ";
  std::string_view given = request.api_key;
  std::string_view header = request.authorization;
  const auto same_letter = [](char a, char b) { return (a | 0x20) == (b | 0x20); };
  if (header.size() >= kBearer.size() &&
      std::equal(kBearer.begin(), kBearer.end(), header.begin(), same_letter)) {
    given = header.substr(kBearer.size());
    while (given.starts_with(' ')) given.remove_prefix(1);
  }
  request.client = options_.keys.find(given);
  return request.client.has_value();
}

bool Router::origin_allowed(std::string_view origin) const {
  return std::any_of(options_.cors_origins.begin(), options_.cors_origins.end(),
                     [origin](const std::string& allowed) {
                       return allowed == "*" || allowed == origin ||
                              (allowed == "localhost" && is_local(origin));
                     });
}

void Router::add_cors(Exchange& exchange) const {
  const std::string& origin = exchange.request().origin;
  if (origin.empty() || !origin_allowed(origin)) return;
  exchange.add_header("Access-Control-Allow-Origin", origin);
  exchange.add_header("Vary", "Origin");
  exchange.add_header("Access-Control-Expose-Headers", "x-request-id, Retry-After");
}

Task<void> Router::handle(Exchange& exchange) const {
  HttpRequest& request = exchange.request();
  add_cors(exchange);
  const bool head = request.method == "HEAD";
  const Route* route = nullptr;
  std::string allowed;
  for (const Route& candidate : routes_) {
    if (!matches(candidate.path, request.path)) continue;
    if (!allowed.empty()) allowed += ", ";
    allowed += candidate.method;
    if (candidate.method == request.method || (head && candidate.method == "GET")) {
      route = &candidate;
      break;
    }
  }
  ApiError error;
  if (route && (route->open || authorized(request))) {
    co_await route->handler(exchange);
    co_return;
  }
  HttpResponse response;
  if (route) {
    response = to_response(to_api_error({ErrorCode::kUnauthenticated,
                                         "the API key is missing or wrong; send it as "
                                         "'Authorization: Bearer KEY'",
                                         0}));
  } else if (request.method == "OPTIONS") {
    response.headers.emplace_back("Access-Control-Allow-Methods", "GET, POST, OPTIONS");
    // Clients in a page send many of their own; the wildcard does not cover the first.
    response.headers.emplace_back("Access-Control-Allow-Headers", "Authorization, *");
    response.headers.emplace_back("Access-Control-Max-Age", "600");
  } else if (!allowed.empty()) {
    error.status = 405;
    error.message = fmt::format("{} takes {}, not {}", request.path, allowed, request.method);
    error.code = "method_not_allowed";
    response = to_response(error);
    response.headers.emplace_back("Allow", allowed);
  } else {
    error.status = 404;
    error.message = fmt::format("there is no {} {}", request.method, request.path);
    error.code = "not_found";
    response = to_response(error);
  }
  co_await exchange.respond(response);
}

}  // namespace sluice
