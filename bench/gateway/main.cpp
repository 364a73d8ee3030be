// gateway_bench serve MODEL --port P [--step-us N]   the gateway, an instance behind it that
// computes nothing gateway_bench load --port P ...                    a load on any server; prints
// one line of JSON
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <memory>
#include <stdexcept>

#include "base/time.h"
#include "fake_instance.h"
#include "gateway/gateway.h"
#include "load.h"
#include "model/model.h"
#include "net/prometheus_telemetry.h"

namespace sluice {
namespace {

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  const auto at = static_cast<std::size_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

template <class T>
T or_throw(Result<T> result) {
  if (!result) throw std::runtime_error(result.error().message);
  return std::move(*result);
}

int serve(const std::string& file, GatewayOptions options, Duration step) {
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGTERM);
  sigaddset(&ends, SIGINT);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);  // before any thread
  const SteadyClock clock;
  const auto model = or_throw(load_gguf_model({.path = file, .text_only = true}));
  options.accept_any_model = true;
  PrometheusTelemetry telemetry({.model_name = "m", .num_instances = 1}, clock);
  Gateway gateway(options, *model, clock, telemetry);
  const auto words = or_throw(model->tokenizer().tokenize(
      " the river runs through a quiet valley and the road follows it to the sea", {}));
  FakeInstance instance(gateway.sink(), words, step);
  if (const Status started = gateway.start(instance); !started) {
    throw std::runtime_error(started.error().message);
  }
  fmt::print("serving at {}\n", gateway.port());
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  gateway.stop();
  return 0;
}

int load(const LoadOptions& options) {
  const LoadResult r = run_load(options);
  fmt::print(
      "{{\"seconds\":{},\"requests\":{},\"failed\":{},\"tokens\":{},\"first_p50_ms\":{:.3f},"
      "\"first_p99_ms\":{:.3f},\"all_p50_ms\":{:.3f},\"all_p99_ms\":{:.3f}}}\n",
      r.seconds, r.requests, r.failed, r.tokens, quantile(r.first_ms, 0.5),
      quantile(r.first_ms, 0.99), quantile(r.all_ms, 0.5), quantile(r.all_ms, 0.99));
  return 0;
}

int run(int argc, char** argv) {
  CLI::App app("the gateway alone, and a load for it");
  app.require_subcommand(1);
  std::string model;
  GatewayOptions gateway;
  std::int64_t step_us = 0;
  CLI::App* const server = app.add_subcommand("serve");
  server->add_option("model", model)->required();
  server->add_option("--port", gateway.port);
  server->add_option("--io-threads", gateway.num_threads);
  server->add_option("--step-us", step_us, "0: as fast as the gateway takes tokens");
  LoadOptions options;
  CLI::App* const client = app.add_subcommand("load");
  client->add_option("--port", options.port)->required();
  client->add_option("--model", options.model);
  client->add_option("--streams", options.streams);
  client->add_option("--tokens", options.tokens);
  client->add_option("--prompt-words", options.prompt_words);
  client->add_option("--seconds", options.seconds);
  client->add_option("--rate", options.rate, "requests a second; 0: as fast as answers come");
  CLI11_PARSE(app, argc, argv);
  if (*server) return serve(model, gateway, std::chrono::microseconds(step_us));
  return load(options);
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  try {
    return sluice::run(argc, argv);
  } catch (const std::exception& e) {
    fmt::print(stderr, "gateway_bench: {}\n", e.what());
    return 2;
  }
}
