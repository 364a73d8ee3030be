// An instance's side of its gateways: one stream to each that the directory names.
//
// Requests come down and go to the engine's inbox; events and reports go up, events
// to the gateway that sent the request, reports to all. A gateway is gone when its
// stream breaks or nothing came of it for the lease; what it had sent is an orphan
// then and is cancelled, and it is called again until the directory forgets it.
// The engine's loop never waits here. Internal to net/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/time.h"
#include "net/cluster_security.h"
#include "net/engine_loop.h"
#include "net/gateway_directory.h"
#include "net/peer_links.h"
#include "scheduling/load_report.h"

namespace sluice {

struct LinkOptions {
  std::string name;  // the same after a restart
  Role role = Role::kUnified;
  std::uint64_t model = 0;  // fingerprints
  std::uint64_t kv_layout = 0;
  std::string model_name;
  std::int32_t vocabulary = 1 << 24;
  std::int32_t context = 0;   // longest sequence, tokens
  std::uint64_t process = 0;  // of this life of the program; random
  ClusterSecurity security;
};

class GatewayLinks final : public EngineOutlet {
 public:
  GatewayLinks(LinkOptions options, std::unique_ptr<GatewayDirectory> directory,
               const Clock& clock);
  ~GatewayLinks() override;  // stops

  // Both are to exist until stop() has returned.
  void start(EngineLoop& engine, PeerLinks& peers);
  // Tells the gateways that this instance leaves, so that what still runs goes on
  // elsewhere, and ends the streams.
  void stop();

  // Gateways that have welcomed this instance.
  [[nodiscard]] std::int32_t attached() const;
  // Requests that have not ended.
  [[nodiscard]] std::int32_t active() const;
  // The engine's loop has ended by itself.
  [[nodiscard]] bool engine_ended() const;
  // A gateway has asked this instance to take nothing new.
  [[nodiscard]] bool drain_asked() const;

  // Of requests that are handed over; any thread.
  // The gateway is linked to this instance.
  [[nodiscard]] bool serves(std::uint64_t gateway) const;
  // It runs here from now on, and its gateway learns it. False: that one is not linked.
  [[nodiscard]] bool runs_here(const RequestOrigin& origin);
  // It runs in that process.
  void runs_there(const RequestOrigin& origin, std::uint64_t process);
  // Nothing more is said of it from here.
  void left(RequestId request);

  // EngineOutlet, on the engine's loop.
  void on_report(LoadReport&& report, std::shared_ptr<const EngineStats> stats,
                 std::shared_ptr<const HandoffReport> handoffs) override;
  void on_tokens(std::vector<TokenEvent>&& events) override;
  void on_end(InstanceId instance, Incarnation incarnation, const Error& error) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
