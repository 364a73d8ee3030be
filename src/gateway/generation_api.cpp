// /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /invocations.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "gateway/api.h"
#include "gateway/generation_job.h"
#include "gateway/generation_run.h"
#include "gateway/json_reader.h"

namespace sluice {

namespace {

ApiResult<GenerationJob> chat_job(const GatewayContext& context, std::string_view body) {
  auto call = parse_chat(body, context.parse);
  if (!call) return tl::unexpected(std::move(call).error());
  return build_chat_job(context, std::move(*call));
}

ApiResult<GenerationJob> completion_job(const GatewayContext& context, std::string_view body) {
  auto call = parse_completion(body, context.parse);
  if (!call) return tl::unexpected(std::move(call).error());
  return build_completion_job(context, std::move(*call));
}

ApiResult<GenerationJob> responses_job(const GatewayContext& context, std::string_view body) {
  auto call = parse_responses(body, context.parse);
  if (!call) return tl::unexpected(std::move(call).error());
  return build_responses_job(context, std::move(*call));
}

ApiResult<GenerationJob> messages_job(const GatewayContext& context, std::string_view body) {
  auto call = parse_messages(body, context.parse);
  if (!call) return tl::unexpected(std::move(call).error());
  return build_messages_job(context, std::move(*call));
}

// SageMaker's one path for all: the body says what it is.
ApiResult<GenerationJob> invocation_job(const GatewayContext& context, std::string_view body) {
  auto json = parse_json_object(body, context.options.limits.max_json_depth);
  if (!json) return tl::unexpected(std::move(json).error());
  return json->contains("messages") ? chat_job(context, body) : completion_job(context, body);
}

// What the headers of the Gateway API's inference extension say of a request: how
// important it is, where its body does not, and whose it is.
ApiResult<void> read_class(const GatewayContext& context, const HttpRequest& http,
                           GenerationJob& job) {
  const std::size_t limit = context.options.limits.max_tenant_bytes;
  if (http.fairness_id.size() > limit) {
    return bad_request(
        fmt::format("x-gateway-inference-fairness-id has {} bytes, above the limit "
                    "of {}",
                    http.fairness_id.size(), limit));
  }
  std::int32_t priority = 0;
  const auto named = context.options.objectives.find(http.objective);
  if (named != context.options.objectives.end()) {
    priority = named->second;
  } else if (const char* end = http.objective.data() + http.objective.size();
             std::from_chars(http.objective.data(), end, priority).ptr != end) {
    priority = 0;  // a name that nobody configured: an ordinary request
  }
  priority = std::clamp(priority, -kMostPriority, kMostPriority);
  for (const auto& request : job.requests) {
    if (!request) continue;
    request->tenant = http.fairness_id;
    if (http.fairness_id.empty() && http.client) request->tenant = context.keys.name(*http.client);
    if (request->priority == 0) request->priority = priority;
  }
  return {};
}

using JobBuilder = ApiResult<GenerationJob> (*)(const GatewayContext&, std::string_view);
using ErrorWriter = HttpResponse (*)(const ApiError&);

// A job, or why there is none.
ApiResult<GenerationJob> make_job(GatewayContext& context, std::string_view body,
                                  JobBuilder build) {
  if (context.draining) {  // before the work of tokenizing
    context.telemetry.on_rejected("unavailable");
    return tl::unexpected(
        to_api_error({ErrorCode::kUnavailable, "the server is shutting down", 0}));
  }
  auto job = build(context, body);
  if (!job) context.telemetry.on_rejected("bad_request");
  return job;
}

void add_limit_headers(Exchange& exchange, const std::string& what, const ApiKeys::Left& left) {
  if (left.limit == 0) return;
  exchange.add_header("x-ratelimit-limit-" + what, std::to_string(left.limit));
  exchange.add_header("x-ratelimit-remaining-" + what, std::to_string(left.remaining));
  exchange.add_header("x-ratelimit-reset-" + what, fmt::format("{:.3f}s", left.full_in_s));
}

// A place among what runs with the client's key, or why there is none.
ApiResult<ApiKeys::Use> use_key(GatewayContext& context, Exchange& exchange) {
  const auto client = exchange.request().client;
  if (!client) return ApiKeys::Use();
  auto use = context.keys.admit(*client);
  const ApiKeys::State state = context.keys.state(*client);
  add_limit_headers(exchange, "requests", state.requests);
  add_limit_headers(exchange, "tokens", state.tokens);
  if (!use) context.telemetry.on_rejected("rate_limit");
  return use;
}

Task<void> generate(GatewayContext& context, Exchange& exchange, JobBuilder build,
                    ErrorWriter refusal) {
  auto use = use_key(context, exchange);
  if (!use) {
    const HttpResponse response = refusal(use.error());
    co_await exchange.respond(response);
    co_return;
  }
  auto job = make_job(context, exchange.request().body, build);
  exchange.request().body = std::string();  // the job has what it needs; the text may be large
  if (job) {
    if (auto known = read_class(context, exchange.request(), *job); !known) {
      job = tl::unexpected(std::move(known).error());
    }
  }
  if (!job) {
    const HttpResponse response = refusal(job.error());
    co_await exchange.respond(response);
    co_return;
  }
  GenerationRun run(context, exchange, std::move(*job), std::move(*use));
  co_await run.run();
}

}  // namespace

void add_generation_routes(Router& router, GatewayContext& context) {
  const auto add = [&](const char* path, JobBuilder build, ErrorWriter refusal = to_response) {
    const RouteHandler handler = [&context, build, refusal](Exchange& exchange) {
      return generate(context, exchange, build, refusal);
    };
    router.add({"POST", std::string("/v1") + path, handler});
    router.add({"POST", path, handler});
  };
  add("/chat/completions", chat_job);
  add("/completions", completion_job);
  add("/responses", responses_job);
  add("/messages", messages_job, messages_error);
  add("/invocations", invocation_job);
}

}  // namespace sluice
