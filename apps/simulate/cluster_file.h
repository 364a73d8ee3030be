// The cluster that is simulated: from a YAML file, or from words like
// "16xh100-8b" (so many instances of a device, joined by "+").
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "simulation/device.h"
#include "simulation/network.h"
#include "simulation/node.h"

namespace sluice {

struct ClusterSpec {
  std::vector<NodeOptions> nodes;
  std::vector<std::shared_ptr<const DeviceProfile>> devices;  // by node
  NetworkOptions network;
  std::int32_t queue_limit = 4096;
  std::int32_t max_waiting = 1024;  // requests at one instance
  std::vector<Fault> faults;

  [[nodiscard]] std::vector<const DeviceProfile*> profiles() const;
};

// kInvalidArgument names the key and its limits; kNotFound: no such file or device.
[[nodiscard]] Result<ClusterSpec> read_cluster(const std::string& file_or_words);
[[nodiscard]] Result<ClusterSpec> parse_cluster(const std::string& yaml);
// The first `prefill` instances prefill, the next `decode` decode, the rest are as they
// were. kInvalidArgument: there are not so many, or none is left that prefills.
[[nodiscard]] Status set_roles(ClusterSpec& cluster, std::int32_t prefill, std::int32_t decode);

}  // namespace sluice
