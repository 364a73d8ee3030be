#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/time.h"
#include "console.h"
#include "forecast_state.h"
#include "gateway/gateway.h"
#include "memory/host_kv.h"
#include "memory/kv_arena.h"
#include "model/model.h"
#include "net/local_cluster.h"
#include "net/prometheus_telemetry.h"
#include "options.h"
#include "or_throw.h"
#include "sizing.h"

namespace sluice {
namespace {

// One arena an instance, or one for all where sequences go from one to another;
// touched by as many threads as will use it.
std::vector<KvArena> make_arenas(const ServeOptions& options, const Sizing& sizing) {
  std::vector<KvArena> arenas;
  const std::int32_t count = options.prefill > 0 ? 1 : options.instances;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t blocks = sizing.num_blocks * (options.instances / count);
    arenas.push_back(or_throw(KvArena::create(sizing.layout, blocks)));
    const KvArena& arena = arenas.back();
    std::vector<Status> results(static_cast<std::size_t>(sizing.threads));
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < results.size(); ++t) {
      threads.emplace_back([&arena, &results, t] {
        for (std::size_t chunk = t; chunk < arena.num_chunks() && results[t];
             chunk += results.size()) {
          results[t] = arena.touch_chunk(chunk);
        }
      });
    }
    threads.clear();  // joins
    for (Status& result : results) or_throw(std::move(result));
  }
  return arenas;
}

// Where paused sequences wait, and what copying a block there takes; none: null.
struct HostMemory {
  std::unique_ptr<HostKv> kv;
  Duration block_copy{};
};

HostMemory make_host_memory(const KvView& device, const Sizing& sizing) {
  if (sizing.num_host_blocks == 0) return {};
  auto arena = or_throw(KvArena::create(sizing.layout, sizing.num_host_blocks));
  or_throw(arena.touch());
  HostMemory host{make_arena_host_kv(device, std::move(arena)), {}};
  const std::int32_t count = std::min({16, device.num_blocks, sizing.num_host_blocks});
  std::vector<BlockId> blocks;
  for (std::int32_t b = 0; b < count; ++b) blocks.emplace_back(b);
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  host.kv->save(blocks, blocks);
  host.block_copy = (clock.now() - begin) / count;
  return host;
}

std::vector<LocalInstance> make_instances(const ServeOptions& options, const Sizing& sizing,
                                          const Model& model, const std::vector<KvArena>& arenas) {
  std::vector<LocalInstance> instances;
  for (std::int32_t i = 0; i < options.instances; ++i) {
    const bool shared = options.prefill > 0;
    const KvArena& arena = arenas[shared ? 0 : static_cast<std::size_t>(i)];
    auto runner = or_throw(model.make_runner(
        {.num_threads = sizing.threads,
         .max_step_tokens = sizing.max_batch_tokens,
         .max_step_outputs = sizing.max_running + BatchOptions{}.max_scored_tokens,
         .max_context = sizing.context}));
    if (options.pace) runner = make_paced_runner(std::move(runner), *options.pace);
    runner->bind(arena.view());
    EngineOptions engine = engine_options(sizing, options.prefix_cache);
    engine.kv.policy = memory_policy_of(options.memory_policy).value();  // the flag was checked
    HostMemory host = make_host_memory(arena.view(), sizing);
    if (host.kv) engine.host_block_copy = host.block_copy;
    if (shared) engine.kv.first_block = i * sizing.num_blocks;
    const Role role = !shared               ? Role::kUnified
                      : i < options.prefill ? Role::kPrefill
                                            : Role::kDecode;
    instances.push_back({engine, std::move(runner), std::move(host.kv), role});
  }
  return instances;
}

GatewayOptions gateway_options(const ServeOptions& options, const ModelInfo& model,
                               const Sizing& sizing) {
  GatewayOptions gateway;
  gateway.host = options.host;
  gateway.port = options.port;
  gateway.num_threads = options.io_threads;
  gateway.model_id = options.model_name.empty() ? model.id : options.model_name;
  gateway.accept_any_model = options.accept_any_model;
  gateway.context_tokens = sizing.context;
  gateway.api_keys = options.api_keys;
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
  const std::string url = fmt::format("http://{}:{}", host, port);
  const std::string key = options.api_keys.empty() ? "" : " -H \"Authorization: Bearer $KEY\"";
  fmt::print(
      "\n  {} is served at  {}/v1\n"
      "  a page to talk to it and to watch it:  {}/\n\n"
      "  curl {}/v1/chat/completions{} -H 'Content-Type: application/json' \\\n"
      "    -d '{{\"model\": \"{}\", \"messages\": [{{\"role\": \"user\", \"content\": "
      "\"Hello!\"}}]}}'\n\n",
      model, url, url, url, key, model);
  std::fflush(stdout);
}

// An instance more than there were learns from the last of them.
void restore_forecasts(const ServeOptions& options, std::vector<LocalInstance>& instances) {
  if (options.forecast_state.empty()) return;
  const auto learned = or_throw(read_forecast_state(options.forecast_state));
  if (learned.empty()) return;
  for (std::size_t i = 0; i < instances.size(); ++i) {
    instances[i].engine.learned_lengths = learned[std::min(i, learned.size() - 1)];
  }
}

void save_forecasts(const ServeOptions& options, const LocalCluster& cluster) {
  if (options.forecast_state.empty()) return;
  const Status saved = write_forecast_state(options.forecast_state, cluster.learned_lengths());
  if (!saved) spdlog::error("{}", saved.error().message);
}

// First signal: no new work, what runs may end. Second signal, or time over: stop.
void wait_and_drain(StopSignals& signals, Gateway& gateway, int drain_seconds) {
  signals.wait();
  spdlog::info("draining: {} requests are running; a second signal stops at once",
               gateway.active_requests());
  gateway.begin_drain();
  const SteadyClock clock;
  const TimePoint limit = clock.now() + std::chrono::seconds(drain_seconds);
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

}  // namespace

int serve(const ServeOptions& options) {
  start_logging(options.log_level);
  StopSignals signals;  // before any thread
  const SteadyClock clock;

  const auto model = or_throw(load_gguf_model({.path = options.model,
                                               .chat_template = chat_template_of(options),
                                               .repack = options.repack,
                                               .on_progress = progress_of("loading the model")}));
  const ModelInfo& info = model->info();
  const Sizing sizing = or_throw(size_instance(options, info, this_machine()));
  const std::vector<KvArena> arenas = make_arenas(options, sizing);
  std::vector<LocalInstance> instances = make_instances(options, sizing, *model, arenas);
  restore_forecasts(options, instances);
  spdlog::info(
      "{} instance(s) of {} ({}, {}), {} thread(s) and {} KV blocks of {} tokens each ({}); "
      "context {} tokens",
      options.instances, info.id, info.architecture, info.quantization, sizing.threads,
      sizing.num_blocks, sizing.layout.block_tokens,
      format_size(static_cast<std::size_t>(sizing.num_blocks) * sizing.layout.block_bytes()),
      sizing.context);

  const GatewayOptions front = gateway_options(options, info, sizing);
  PrometheusTelemetry telemetry({.model_name = front.model_id, .num_instances = options.instances},
                                clock);
  Gateway gateway(front, *model, clock, telemetry);

  LocalClusterOptions cluster_options;
  cluster_options.policy = options.policy;
  cluster_options.decode_policy = options.decode_policy;
  if (options.prefill > 0) cluster_options.arena = arenas.front().view();
  cluster_options.scheduler.queue_limit = options.queue_limit;
  cluster_options.seed = std::random_device{}();
  const auto cluster = or_throw(LocalCluster::start(cluster_options, std::move(instances),
                                                    model->samplers(), clock, gateway.sink()));
  telemetry.observe(cluster.get());
  or_throw(gateway.start(*cluster));
  print_welcome(options, front.model_id, gateway.port());

  wait_and_drain(signals, gateway, options.drain_seconds);
  gateway.stop();
  telemetry.observe(nullptr);
  cluster->stop();
  save_forecasts(options, *cluster);
  return 0;
}

}  // namespace sluice
