#include "gateway/gateway.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <random>

#include "base/time.h"
#include "console.h"
#include "fingerprint.h"
#include "front.h"
#include "net/prometheus_telemetry.h"
#include "net/remote_cluster.h"
#include "options.h"
#include "or_throw.h"

namespace sluice {

int gateway(const GatewayCommandOptions& options) {
  const ServeOptions& wanted = options.front;
  start_logging(wanted.log_level);
  StopSignals signals;  // before any thread
  const SteadyClock clock;

  RemoteClusterOptions cluster;
  cluster.model = or_throw(file_fingerprint(wanted.model));
  cluster.security = or_throw(load_security(options.cluster.security));
  const auto model = or_throw(load_gguf_model(
      {.path = wanted.model, .chat_template = chat_template_of(wanted), .text_only = true}));
  const ModelInfo& info = model->info();
  const std::int32_t context = wanted.context > 0 ? wanted.context : info.trained_context;

  const GatewayOptions front = gateway_options(wanted, info, context);
  // More than one instance is what it is made for, whatever it has now.
  PrometheusTelemetry telemetry({.model_name = front.model_id, .num_instances = 2}, clock);
  Gateway http(front, *model, clock, telemetry);

  cluster.policy = wanted.policy;
  cluster.scheduler.queue_limit = wanted.queue_limit;
  cluster.scheduler.silence_limit = std::chrono::seconds(options.hung_seconds);
  cluster.placement.max_report_age = cluster.scheduler.silence_limit;
  cluster.seed = std::random_device{}();
  cluster.listen = options.listen;
  cluster.name = options.cluster.name;
  cluster.advertise = options.advertise;
  cluster.join = options.cluster.join;
  cluster.model_name = info.id;
  cluster.vocabulary = info.vocabulary_size;
  cluster.context = context;
  cluster.lease = from_seconds(options.lease_seconds);
  const auto remote = or_throw(RemoteCluster::start(cluster, clock, http.sink()));
  telemetry.observe(remote.get());
  or_throw(http.start(*remote));
  spdlog::info("gateway {} of {}: instances join it at port {}", cluster.name, info.id,
               remote->port());
  print_welcome(wanted, front.model_id, http.port());

  wait_and_drain(signals, http, wanted);
  http.stop();
  telemetry.observe(nullptr);
  remote->stop();
  return 0;
}

}  // namespace sluice
