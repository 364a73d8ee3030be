// The whole cluster in one process: a scheduler loop, and an engine loop for each
// instance, joined by bounded inboxes.
//
// Each object of the pure folders belongs to one of the loops; requests, reports
// and events move between them as values. Loops with nothing to do sleep in their
// inbox. Every accepted request gets exactly one finishing event, also when an
// engine fails or the cluster stops.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cluster/global_scheduler.h"
#include "cluster/handoff_source.h"
#include "cluster/serving.h"
#include "engine/engine.h"
#include "model/model_runner.h"
#include "model/sampler.h"
#include "net/device_gauge.h"
#include "scheduling/placement.h"

namespace sluice {

struct LocalClusterOptions {
  GlobalSchedulerOptions scheduler;
  std::string policy = "forecast";  // one of policy_names()
  // In one process the end of an instance is always heard of; silence only means a
  // long step, which must not make it ineligible.
  PlacementLimits placement{.max_report_age = std::chrono::minutes(2)};
  std::uint64_t seed = 1;             // of the policy's tie-breaks
  std::size_t inbox_capacity = 4096;  // requests that a loop has not looked at yet
  Duration snapshot_interval = std::chrono::milliseconds(100);

  // The arena that all instances' blocks lie in, each with its own part of it. None
  // (no base): each has its own, and nothing is handed over.
  KvView arena;
  std::string decode_policy = "least-peak";  // of the local schedulers
  // Here too silence only means a long step.
  HandoffOptions handoff{.lease = std::chrono::minutes(2),
                         .reserve_timeout = std::chrono::seconds(30),
                         .send_timeout = std::chrono::minutes(2)};
};

// One engine. Its runner is bound to KV memory of `engine.kv` blocks already; that
// memory outlives the cluster.
struct LocalInstance {
  EngineOptions engine;
  std::unique_ptr<ModelRunner> runner;
  std::unique_ptr<HostKv> host = nullptr;  // null: no pausing
  Role role = Role::kUnified;
  std::shared_ptr<const DeviceGauge> device = nullptr;  // null: nobody tells of it
};

class LocalCluster final : public Serving {
 public:
  // Starts the threads. The references outlive the cluster; the clock must be one
  // that moves by itself. kInvalidArgument: no such policy, or no instance.
  [[nodiscard]] static Result<std::unique_ptr<LocalCluster>> start(
      LocalClusterOptions options, std::vector<LocalInstance> instances,
      const SamplerFactory& samplers, const Clock& clock, TokenSink& sink);
  // Stops.
  ~LocalCluster() override;

  [[nodiscard]] Status submit(std::unique_ptr<Request> request) override;
  void cancel(RequestId request) override;
  [[nodiscard]] std::shared_ptr<const ClusterSnapshot> snapshot() const override;
  [[nodiscard]] bool ready() const override;

  // From now on submit() fails with kUnavailable; what was accepted goes on.
  void drain();
  // After drain(): true once nothing is left, false when the time is over first.
  [[nodiscard]] bool wait_drained(Duration timeout);
  // Ends what is left with kUnavailable and joins the threads. Again does nothing.
  void stop();
  // After stop(), by instance: Engine::learned_lengths().
  [[nodiscard]] std::vector<std::string> learned_lengths() const;

 private:
  class Impl;
  explicit LocalCluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
