// A cluster of instances in other processes, as a gateway serves it.
//
// The scheduler loop is the one of net/local_cluster.h; its instances call in over
// gRPC (net/instance_registry.h). Several gateways may serve the same instances, each
// with its own scheduler, load table and ledger: none knows of the others, and the
// instances' reports tell each of all load.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cluster/global_scheduler.h"
#include "cluster/serving.h"
#include "net/cluster_security.h"
#include "scheduling/placement.h"

namespace sluice {

struct RemoteClusterOptions {
  GlobalSchedulerOptions scheduler{.retry_wait = std::chrono::seconds(30),
                                   .silence_limit = std::chrono::seconds(30)};
  std::string policy = "forecast";  // one of policy_names()
  // A process that died is gone with its stream or its lease; a report may be as old as
  // the longest step, which must not make its instance ineligible.
  PlacementLimits placement{.max_report_age = std::chrono::seconds(30)};
  std::uint64_t seed = 1;             // of the policy's tie-breaks
  std::size_t inbox_capacity = 4096;  // requests that the loop has not looked at yet
  Duration snapshot_interval = std::chrono::milliseconds(100);

  std::string listen = "127.0.0.1:0";  // where instances call in
  std::string name;                    // of this gateway
  std::string advertise;               // what etcd is told; empty: `listen`
  std::vector<std::string> join;       // etcd://host:port/cluster, any number
  std::uint64_t model = 0;             // fingerprint; instances of another one are refused
  std::string model_name;
  std::int32_t vocabulary = 1 << 24;
  std::int32_t context = 0;  // tokens that clients are offered; instances hold as many
  Duration lease = std::chrono::seconds(5);
  ClusterSecurity security;
};

class RemoteCluster final : public Serving {
 public:
  // Listens and starts the threads. The references outlive the cluster; the clock must be
  // one that moves by itself. kInvalidArgument, kUnavailable: says what is wrong.
  [[nodiscard]] static Result<std::unique_ptr<RemoteCluster>> start(RemoteClusterOptions options,
                                                                    const Clock& clock,
                                                                    TokenSink& sink);
  ~RemoteCluster() override;  // stops

  // Where instances call in.
  [[nodiscard]] std::uint16_t port() const;

  [[nodiscard]] Status submit(std::unique_ptr<Request> request) override;
  void cancel(RequestId request) override;
  [[nodiscard]] std::shared_ptr<const ClusterSnapshot> snapshot() const override;
  [[nodiscard]] bool ready() const override;

  // Ends what is left with kUnavailable, lets the instances go and joins the threads.
  void stop();

 private:
  class Impl;
  explicit RemoteCluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
