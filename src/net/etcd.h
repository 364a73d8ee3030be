// Membership in etcd: gateways write where they are under a lease, instances watch.
//
// Keys are /sluice/CLUSTER/gateways/NAME, values are host:port. While etcd cannot be
// reached whoever is known stays known, and a gateway whose lease ran out meanwhile
// writes itself again. Internal to net/.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "net/gateway_directory.h"

namespace sluice {

inline constexpr const char* kEtcdScheme = "etcd://";

struct EtcdTarget {
  std::string endpoints;  // as gRPC takes it: host:port, or ipv4:a:1,b:2
  std::string prefix;     // of the gateways' keys
};

// etcd://host:port[/cluster]; the cluster is "default" where it is not named.
[[nodiscard]] Result<EtcdTarget> parse_etcd(const std::string& text);

[[nodiscard]] std::unique_ptr<GatewayDirectory> watch_etcd(const EtcdTarget& target);
[[nodiscard]] std::unique_ptr<Announcement> announce_in_etcd(const EtcdTarget& target,
                                                             const std::string& gateway,
                                                             const std::string& address);

}  // namespace sluice
