// A gateway's side of its instances: they call in, say who they are, and stay.
//
// Each is bound to an incarnation that is given out here: whoever calls again, the
// same process or a restarted one, is a new one, and nothing of its former life
// counts. An instance is gone when its stream breaks, when nothing came of it for
// the lease (a heartbeat is enough), or when it says so. What instances say goes to
// the scheduler's inbox; what the scheduler wants goes out here and never waits.
// Internal to net/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "base/time.h"
#include "cluster/global_scheduler.h"
#include "net/cluster_security.h"
#include "net/scheduler_loop.h"

namespace sluice {

struct RegistryOptions {
  std::string listen = "127.0.0.1:0";  // host:port
  std::string gateway;                 // this gateway's name, for the instances' logs
  std::uint64_t model = 0;             // fingerprint; instances of another one are refused
  std::string model_name;
  std::int32_t vocabulary = 1 << 24;
  std::int32_t context = 0;  // tokens that clients are offered; instances hold as many
  Duration lease = std::chrono::seconds(5);
  std::uint64_t process = 0;  // of this life of the gateway; random
  ClusterSecurity security;
};

class InstanceRegistry final : public InstancePort {
 public:
  // Listens. The references outlive the registry. kUnavailable: the address cannot be bound.
  [[nodiscard]] static Result<std::unique_ptr<InstanceRegistry>> start(RegistryOptions options,
                                                                       SchedulerInbox& scheduler,
                                                                       const Clock& clock);
  ~InstanceRegistry() override;  // stops

  [[nodiscard]] std::uint16_t port() const;
  // Ends every stream; each instance's last message is in the inbox when this returns.
  void stop();

  // InstancePort, on the scheduler's loop.
  [[nodiscard]] bool submit(const Placement& placement, std::unique_ptr<Request>& request) override;
  void cancel(const Placement& placement, RequestId request) override;
  void abandon(const Placement& placement) override;

 private:
  class Impl;
  explicit InstanceRegistry(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
