#include "front.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace sluice {

GatewayOptions gateway_options(const ServeOptions& options, const ModelInfo& model,
                               std::int32_t context) {
  GatewayOptions gateway;
  gateway.host = options.host;
  gateway.port = options.port;
  gateway.num_threads = options.io_threads;
  gateway.model_id = options.model_name.empty() ? model.id : options.model_name;
  gateway.tls = options.https;
  gateway.accept_any_model = options.accept_any_model;
  gateway.context_tokens = context;
  gateway.api_keys = options.limited_keys;
  for (const std::string& key : options.api_keys) gateway.api_keys.push_back({.key = key});
  gateway.cors_origins = options.cors_origins;
  gateway.objectives = options.objectives;
  gateway.version = SLUICE_VERSION;
  gateway.benchmark = options.benchmark;
  return gateway;
}

void print_welcome(const ServeOptions& options, const std::string& model, std::uint16_t port) {
  const std::string host = options.host == "0.0.0.0" || options.host == "::" ? "127.0.0.1"
                           : options.host.find(':') != std::string::npos ? "[" + options.host + "]"
                                                                         : options.host;
  const char* scheme = options.https.certificate.empty() ? "http" : "https";
  const std::string url = fmt::format("{}://{}:{}", scheme, host, port);
  const bool open = options.api_keys.empty() && options.limited_keys.empty();
  const std::string key = open ? "" : " -H \"Authorization: Bearer $KEY\"";
  fmt::print(
      "\n  {} is served at  {}/v1\n"
      "  a page to talk to it and to watch it:  {}/\n\n"
      "  curl {}/v1/chat/completions{} -H 'Content-Type: application/json' \\\n"
      "    -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": "
      "\"Hello!\"}}]}}'\n\n",
      model, url, url, url, key, model);
  std::fflush(stdout);
}

void wait_and_drain(StopSignals& signals, Gateway& gateway, const ServeOptions& options) {
  const bool https = !options.https.certificate.empty();
  while (signals.wait() == StopSignals::Signal::kHangup && https) {
    const Status read = gateway.reload_certificate();
    if (!read) spdlog::error("the certificate stays as it is: {}", read.error().message);
    if (read) spdlog::info("SIGHUP: what has changed of the certificate is used from now on");
  }
  spdlog::info("draining: {} requests are running; a second signal stops at once",
               gateway.active_requests());
  gateway.begin_drain();
  const SteadyClock clock;
  const TimePoint limit = clock.now() + std::chrono::seconds(options.drain_seconds);
  while (!gateway.wait_drained(Duration::zero()) && clock.now() < limit) {
    if (signals.wait_for(std::chrono::milliseconds(50))) {
      spdlog::warn("stopping with {} requests running", gateway.active_requests());
      return;
    }
  }
}

std::string chat_template_of(const ServeOptions& options) {
  if (options.chat_template.empty()) return {};
  std::ifstream file(options.chat_template);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.empty()) throw std::runtime_error(options.chat_template + ": no chat template there");
  return text;
}

}  // namespace sluice
