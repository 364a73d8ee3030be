#include <spdlog/spdlog.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "console.h"
#include "device_watch.h"
#include "engines.h"
#include "forecast_state.h"
#include "front.h"
#include "gateway/gateway.h"
#include "model/model.h"
#include "net/local_cluster.h"
#include "net/prometheus_telemetry.h"
#include "options.h"
#include "or_throw.h"
#include "sizing.h"

namespace sluice {
namespace {

// One memory an instance, or one for all where sequences go from one to another.
std::vector<KvMemory> make_memories(const ServeOptions& options, const Sizing& sizing,
                                    const Model& model) {
  std::vector<KvMemory> memories;
  const std::int32_t count = options.prefill > 0 ? 1 : options.instances;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t blocks = sizing.num_blocks * (options.instances / count);
    memories.emplace_back(model, sizing, blocks);
  }
  return memories;
}

std::vector<LocalInstance> make_instances(const ServeOptions& options, const Sizing& sizing,
                                          const Model& model,
                                          const std::vector<KvMemory>& memories) {
  std::vector<LocalInstance> instances;
  for (std::int32_t i = 0; i < options.instances; ++i) {
    const bool shared = options.prefill > 0;
    const KvMemory& memory = memories[shared ? 0 : static_cast<std::size_t>(i)];
    LocalInstance instance = make_engine(options, sizing, model, memory.view());
    if (shared) instance.engine.kv.first_block = i * sizing.num_blocks;
    if (shared) instance.role = i < options.prefill ? Role::kPrefill : Role::kDecode;
    instances.push_back(std::move(instance));
  }
  return instances;
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

}  // namespace

int serve(const ServeOptions& options) {
  start_logging(options.log_level);
  StopSignals signals;  // before any thread
  const SteadyClock clock;

  const Device device = device_of(options.device);
  const auto model = or_throw(load_gguf_model({.path = options.model,
                                               .chat_template = chat_template_of(options),
                                               .device = device.name,
                                               .repack = options.repack,
                                               .on_progress = progress_of("loading the model")}));
  const ModelInfo& info = model->info();
  const Sizing sizing = or_throw(size_instance(options, info, machine_of(device)));
  const std::vector<KvMemory> memories = make_memories(options, sizing, *model);
  std::vector<LocalInstance> instances = make_instances(options, sizing, *model, memories);
  restore_forecasts(options, instances);
  const auto watch = std::make_shared<DeviceWatch>(device);
  for (LocalInstance& instance : instances) instance.device = watch;
  spdlog::info(
      "{} instance(s) of {} ({}, {}) on {}, {} thread(s) and {} KV blocks of {} tokens each ({}); "
      "context {} tokens",
      options.instances, info.id, info.architecture, info.quantization, device.name, sizing.threads,
      sizing.num_blocks, sizing.layout.block_tokens,
      format_size(static_cast<std::size_t>(sizing.num_blocks) * sizing.layout.block_bytes()),
      sizing.context);

  const GatewayOptions front = gateway_options(options, info, sizing.context);
  PrometheusTelemetry telemetry({.model_name = front.model_id, .num_instances = options.instances},
                                clock);
  Gateway gateway(front, *model, clock, telemetry);

  LocalClusterOptions cluster_options;
  cluster_options.policy = options.policy;
  cluster_options.decode_policy = options.decode_policy;
  if (options.prefill > 0) cluster_options.arena = memories.front().view();
  cluster_options.scheduler.queue_limit = options.queue_limit;
  cluster_options.seed = std::random_device{}();
  const auto cluster = or_throw(LocalCluster::start(cluster_options, std::move(instances),
                                                    model->samplers(), clock, gateway.sink()));
  telemetry.observe(cluster.get());
  or_throw(gateway.start(*cluster));
  print_welcome(options, front.model_id, gateway.port());

  wait_and_drain(signals, gateway, options);
  gateway.stop();
  telemetry.observe(nullptr);
  cluster->stop();
  save_forecasts(options, *cluster);
  return 0;
}

}  // namespace sluice
