#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <cstdio>

#include "base/time.h"
#include "console.h"
#include "device_watch.h"
#include "engines.h"
#include "fingerprint.h"
#include "forecast_state.h"
#include "net/instance_process.h"
#include "options.h"
#include "or_throw.h"
#include "sizing.h"

namespace sluice {
namespace {

Role role_of(const std::string& name) {
  for (const Role role : {Role::kUnified, Role::kPrefill, Role::kDecode}) {
    if (name == role_name(role)) return role;
  }
  throw std::runtime_error(fmt::format("there is no role \"{}\"", name));
}

// True: go on to the end of the process. A second signal does not wait for what runs.
void wait_and_drain(StopSignals& signals, InstanceProcess& instance, int drain_seconds) {
  constexpr Duration kLook = std::chrono::milliseconds(100);
  while (!instance.engine_ended() && !instance.drain_asked()) {
    if (signals.wait_for(kLook)) break;
  }
  if (instance.engine_ended()) return;
  spdlog::info("draining: {} requests are running; a second signal hands them on at once",
               instance.active());
  instance.drain();
  const SteadyClock clock;
  const TimePoint limit = clock.now() + std::chrono::seconds(drain_seconds);
  while (instance.active() > 0 && clock.now() < limit && !instance.engine_ended()) {
    if (signals.wait_for(kLook)) break;
  }
  if (instance.active() > 0) spdlog::warn("handing {} requests on", instance.active());
}

}  // namespace

int instance(const InstanceOptions& options) {
  start_logging(options.engine.log_level);
  StopSignals signals;  // before any thread
  const SteadyClock clock;
  const ServeOptions& wanted = options.engine;

  const Device device = device_of(wanted.device);
  InstanceProcessOptions process;
  process.name = options.cluster.name;
  process.role = role_of(options.role);
  process.join = options.cluster.join;
  process.security = or_throw(load_security(options.cluster.security));
  process.model = or_throw(file_fingerprint(wanted.model));

  const auto model = or_throw(load_gguf_model({.path = wanted.model,
                                               .device = device.name,
                                               .repack = wanted.repack,
                                               .on_progress = progress_of("loading the model")}));
  const ModelInfo& info = model->info();
  const Sizing sizing = or_throw(size_instance(wanted, info, machine_of(device)));
  // What is handed over is read in place where the host is the same.
  const bool shared = process.role == Role::kPrefill && options.shared_kv;
  const ArenaKind kind = shared ? ArenaKind::kShared : ArenaKind::kPrivate;
  const KvMemory memory(*model, sizing, sizing.num_blocks, kind);
  process.handoffs = {.arena = memory.view(),
                      .file = memory.file(),
                      .listen = options.listen,
                      .advertise = options.advertise,
                      .policy = wanted.decode_policy,
                      .lease = from_seconds(options.handoff_lease_seconds),
                      .kv_tcp = options.kv_tcp,
                      .kv_port = options.kv_port,
                      .kv_ucx = options.kv_ucx == "on"     ? KvUcx::kOn
                                : options.kv_ucx == "auto" ? KvUcx::kAuto
                                                           : KvUcx::kOff,
                      .kv_ucx_port = options.kv_ucx_port,
                      .checksum = options.checksum};
  process.model_name = info.id;
  process.kv_layout = layout_fingerprint(sizing.layout);
  process.vocabulary = info.vocabulary_size;
  LocalInstance engine = make_engine(wanted, sizing, *model, memory.view());
  engine.device = std::make_shared<DeviceWatch>(device);
  if (!wanted.forecast_state.empty()) {
    const auto learned = or_throw(read_forecast_state(wanted.forecast_state));
    if (!learned.empty()) engine.engine.learned_lengths = learned.front();
  }
  const auto started =
      or_throw(InstanceProcess::start(process, std::move(engine), model->samplers(), clock));
  spdlog::info(
      "instance {} ({}) of {} ({}, {}) on {}, {} thread(s) and {} KV blocks of {} tokens ({}); "
      "context "
      "{} tokens",
      process.name, options.role, info.id, info.architecture, info.quantization, device.name,
      sizing.threads, sizing.num_blocks, sizing.layout.block_tokens,
      format_size(static_cast<std::size_t>(sizing.num_blocks) * sizing.layout.block_bytes()),
      sizing.context);

  wait_and_drain(signals, *started, wanted.drain_seconds);
  const bool failed = started->engine_ended();
  started->stop();
  if (!wanted.forecast_state.empty()) {
    or_throw(write_forecast_state(wanted.forecast_state, {started->learned_lengths()}));
  }
  return failed ? 1 : 0;
}

}  // namespace sluice
