// Health, metrics, the cluster's state, and the page.
#include <utility>

#include "gateway/api.h"
#include "gateway/debug_json.h"
#include "gateway/json_writer.h"
#include "gateway/page.h"

namespace sluice {

namespace {

HttpResponse status_response(int status, const char* word) {
  HttpResponse response;
  response.status = status;
  JsonWriter(response.body).begin_object().member("status", word).end_object();
  return response;
}

HttpResponse health(const GatewayContext&, const HttpRequest&) {
  return status_response(200, "ok");
}

HttpResponse ready(const GatewayContext& context, const HttpRequest&) {
  if (context.draining) return status_response(503, "draining");
  if (!context.serving->ready()) return status_response(503, "not ready");
  return status_response(200, "ready");
}

HttpResponse metrics(const GatewayContext& context, const HttpRequest&) {
  HttpResponse response;
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  response.body = context.telemetry.render();
  return response;
}

HttpResponse version(const GatewayContext& context, const HttpRequest&) {
  HttpResponse response;
  JsonWriter(response.body).begin_object().member("version", context.options.version).end_object();
  return response;
}

HttpResponse debug_memory(const GatewayContext& context, const HttpRequest&) {
  HttpResponse response;
  response.body = memory_json(*context.serving->snapshot(), context.clock.now());
  return response;
}

// "?inputs=1": with what each was made from, some kilobytes an instance.
HttpResponse debug_decisions(const GatewayContext& context, const HttpRequest& request) {
  HttpResponse response;
  response.body = decisions_json(*context.serving->snapshot(), context.clock.now(),
                                 request.query == "inputs=1");
  return response;
}

HttpResponse file_response(const char* name, const char* content_type) {
  HttpResponse response;
  response.content_type = content_type;
  response.body = page_file(name);
  response.headers.emplace_back("Cache-Control", "no-cache");
  response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
      "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  return response;
}

HttpResponse page_html(const GatewayContext&, const HttpRequest&) {
  return file_response("index.html", "text/html; charset=utf-8");
}
HttpResponse page_style(const GatewayContext&, const HttpRequest&) {
  return file_response("style.css", "text/css; charset=utf-8");
}
HttpResponse page_script(const GatewayContext&, const HttpRequest&) {
  return file_response("app.js", "text/javascript; charset=utf-8");
}

HttpResponse page_markdown(const GatewayContext&, const HttpRequest&) {
  return file_response("markdown.js", "text/javascript; charset=utf-8");
}

}  // namespace

void add_admin_routes(Router& router, GatewayContext& context) {
  using Answer = HttpResponse (*)(const GatewayContext&, const HttpRequest&);
  const auto add = [&](const char* path, Answer answer, bool open) {
    const RouteHandler handler = [&context, answer](Exchange& exchange) -> Task<void> {
      const HttpResponse response = answer(context, exchange.request());
      co_await exchange.respond(response);
    };
    router.add({"GET", path, handler, open});
  };
  add("/health", health, true);
  add("/v1/health", health, true);
  add("/ready", ready, true);
  add("/ping", health, true);  // SageMaker's name for it
  add("/metrics", metrics, true);
  add("/version", version, false);
  add("/debug/memory", debug_memory, false);
  add("/debug/decisions", debug_decisions, false);
  if (!context.options.page) return;
  add("/", page_html, true);
  add("/style.css", page_style, true);
  add("/app.js", page_script, true);
  add("/markdown.js", page_markdown, true);
}

}  // namespace sluice
