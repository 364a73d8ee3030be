// Where a cluster's gateways are: a list of names, or what they wrote into etcd.
//
// Belongs to the thread that asks, which it may make wait for a moment.
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"

namespace sluice {

struct GatewayAddress {
  std::string address;  // ip:port, or host:port where the name is not resolved here
  std::string host;     // the name that a certificate must be for
  auto operator<=>(const GatewayAddress&) const = default;
};

class GatewayDirectory {
 public:
  virtual ~GatewayDirectory() = default;
  // Those known now, sorted. An answer that cannot be had leaves the last one.
  [[nodiscard]] virtual std::vector<GatewayAddress> addresses() = 0;
};

// Of --join: `host:port`, which stands for every address of that name and is looked
// up again as time goes by, and `etcd://host:port[,host:port]/cluster`. Any number of them.
// kInvalidArgument: one is neither.
[[nodiscard]] Result<std::unique_ptr<GatewayDirectory>> make_directory(
    const std::vector<std::string>& join);

// A gateway's entry in the etcd that `join` names, kept alive while this object is;
// null where `join` names none. Loss of etcd loses nothing: it is written again.
class Announcement {
 public:
  virtual ~Announcement() = default;
};
[[nodiscard]] Result<std::unique_ptr<Announcement>> announce(const std::vector<std::string>& join,
                                                             const std::string& gateway,
                                                             const std::string& address);

// host and port of "host:port" or "[::1]:port". kInvalidArgument: it is not that.
struct HostPort {
  std::string host;
  std::string port;
};
[[nodiscard]] Result<HostPort> parse_host_port(const std::string& text);

}  // namespace sluice
