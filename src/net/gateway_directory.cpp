#include "net/gateway_directory.h"

#include <fmt/format.h>
#include <netdb.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "net/etcd.h"

namespace sluice {
namespace {

constexpr Duration kLookUpAgain = std::chrono::seconds(5);

// Every address of a name, IPv4 where there is any: one gateway is not to be met twice.
std::vector<GatewayAddress> look_up(const HostPort& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(name.host.c_str(), name.port.c_str(), &hints, &found) != 0) return {};
  std::vector<GatewayAddress> addresses;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* a = found; a != nullptr && (family == AF_INET || addresses.empty());
         a = a->ai_next) {
      char host[NI_MAXHOST];
      if (a->ai_family != family || getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof(host),
                                                nullptr, 0, NI_NUMERICHOST) != 0) {
        continue;
      }
      const std::string numeric = family == AF_INET ? host : fmt::format("[{}]", host);
      addresses.push_back({numeric + ":" + name.port, name.host});
    }
  }
  freeaddrinfo(found);
  return addresses;
}

class NamedGateways final : public GatewayDirectory {
 public:
  explicit NamedGateways(HostPort name) : name_(std::move(name)) {}
  std::vector<GatewayAddress> addresses() override {
    const TimePoint now = clock_.now();
    if (!known_.empty() && now - looked_up_ < kLookUpAgain) return known_;
    if (auto found = look_up(name_); !found.empty()) {
      known_ = std::move(found);
      looked_up_ = now;
    }
    return known_;
  }

 private:
  const HostPort name_;
  const SteadyClock clock_;
  std::vector<GatewayAddress> known_;
  TimePoint looked_up_{};
};

class AllOf final : public GatewayDirectory {
 public:
  explicit AllOf(std::vector<std::unique_ptr<GatewayDirectory>> parts) : parts_(std::move(parts)) {}
  std::vector<GatewayAddress> addresses() override {
    std::vector<GatewayAddress> all;
    for (const auto& part : parts_) {
      for (GatewayAddress& a : part->addresses()) all.push_back(std::move(a));
    }
    std::sort(all.begin(), all.end());
    const auto same = [](const auto& a, const auto& b) { return a.address == b.address; };
    all.erase(std::unique(all.begin(), all.end(), same), all.end());
    return all;
  }

 private:
  const std::vector<std::unique_ptr<GatewayDirectory>> parts_;
};

}  // namespace

Result<HostPort> parse_host_port(const std::string& text) {
  const auto colon = text.rfind(':');
  HostPort result;
  if (colon != std::string::npos) {
    result.host = text.substr(0, colon);
    result.port = text.substr(colon + 1);
    if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']') {
      result.host = result.host.substr(1, result.host.size() - 2);
    } else if (result.host.find(':') != std::string::npos) {
      result.host.clear();  // IPv6 without brackets: where does the port begin?
    }
  }
  const bool digits = !result.port.empty() && result.port.size() <= 5 &&
                      result.port.find_first_not_of("0123456789") == std::string::npos;
  if (result.host.empty() || !digits || std::stoi(result.port) > 65535) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("\"{}\" is not host:port (an IPv6 address stands in [ ])", text));
  }
  return result;
}

Result<std::unique_ptr<GatewayDirectory>> make_directory(const std::vector<std::string>& join) {
  std::vector<std::unique_ptr<GatewayDirectory>> parts;
  for (const std::string& where : join) {
    if (where.rfind(kEtcdScheme, 0) == 0) {
      TRY(const EtcdTarget target, parse_etcd(where));
      parts.push_back(watch_etcd(target));
    } else {
      TRY(HostPort name, parse_host_port(where));
      parts.push_back(std::make_unique<NamedGateways>(std::move(name)));
    }
  }
  if (parts.empty()) return fail(ErrorCode::kInvalidArgument, "there is no gateway to join");
  return std::make_unique<AllOf>(std::move(parts));
}

Result<std::unique_ptr<Announcement>> announce(const std::vector<std::string>& join,
                                               const std::string& gateway,
                                               const std::string& address) {
  class Several final : public Announcement {
   public:
    std::vector<std::unique_ptr<Announcement>> all;
  };
  auto result = std::make_unique<Several>();
  for (const std::string& where : join) {
    if (where.rfind(kEtcdScheme, 0) != 0) {
      return fail(
          ErrorCode::kInvalidArgument,
          fmt::format("a gateway joins etcd://host:port; instances join it: \"{}\"", where));
    }
    TRY(const EtcdTarget target, parse_etcd(where));
    result->all.push_back(announce_in_etcd(target, gateway, address));
  }
  return result;
}

}  // namespace sluice
