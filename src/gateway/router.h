// Finds the handler of a request: method and path, then the key, then the call.
//
// Immutable once the threads run.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "gateway/api_keys.h"
#include "gateway/exchange.h"

namespace sluice {

using RouteHandler = std::function<Task<void>(Exchange&)>;

struct Route {
  std::string method;
  std::string path;  // "/v1/models/*": the rest of the path may be anything
  RouteHandler handler;
  bool open = false;  // needs no key
};

struct RouterOptions {
  const ApiKeys& keys;                    // empty: every route is open
  std::vector<std::string> cors_origins;  // as in GatewayOptions
};

class Router final {
 public:
  explicit Router(RouterOptions options) : options_(std::move(options)) {}
  void add(Route route) { routes_.push_back(std::move(route)); }
  [[nodiscard]] Task<void> handle(Exchange& exchange) const;

 private:
  // Notes whose key it is.
  [[nodiscard]] bool authorized(HttpRequest& request) const;
  [[nodiscard]] bool origin_allowed(std::string_view origin) const;
  void add_cors(Exchange& exchange) const;

  const RouterOptions options_;
  std::vector<Route> routes_;
};

}  // namespace sluice
