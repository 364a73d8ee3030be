// /v1/chat/completions, /v1/completions.
#include <utility>

#include "gateway/api.h"
#include "gateway/generation_job.h"
#include "gateway/generation_run.h"

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

using JobBuilder = ApiResult<GenerationJob> (*)(const GatewayContext&, std::string_view);

Task<void> generate(GatewayContext& context, Exchange& exchange, JobBuilder build) {
  if (context.draining) {  // before the work of tokenizing
    context.telemetry.on_rejected("unavailable");
    co_await exchange.respond(
        to_response(to_api_error({ErrorCode::kUnavailable, "the server is shutting down", 0})));
    co_return;
  }
  auto job = build(context, std::exchange(exchange.request().body, {}));
  if (!job) {
    context.telemetry.on_rejected("bad_request");
    co_await exchange.respond(to_response(job.error()));
    co_return;
  }
  GenerationRun run(context, exchange, std::move(*job));
  co_await run.run();
}

}  // namespace

void add_generation_routes(Router& router, GatewayContext& context) {
  const auto add = [&](const char* path, JobBuilder build) {
    const RouteHandler handler = [&context, build](Exchange& exchange) {
      return generate(context, exchange, build);
    };
    router.add({"POST", std::string("/v1") + path, handler});
    router.add({"POST", path, handler});
  };
  add("/chat/completions", chat_job);
  add("/completions", completion_job);
}

}  // namespace sluice
