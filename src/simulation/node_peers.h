// What a simulated instance needs to take part in handoffs. Internal to simulation/.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "cluster/handoff_source.h"
#include "scheduling/placement.h"
#include "simulation/network.h"
#include "simulation/simulated_transfer.h"

namespace sluice {

struct NodePeers {
  KvFabric fabric;
  HandoffOptions handoff;
  NetworkOptions network;
  std::int32_t seeking = 0;  // instances that others' reports go to
  // Of one incarnation's local scheduler.
  std::function<std::unique_ptr<PlacementPolicy>(Placement)> make_policy;
};

}  // namespace sluice
