// An instance's ways to the other instances of a cluster of several processes: the
// real PeerPort, and the channel that KV goes over.
//
// Who hands sequences over, a prefill instance or another from when it has to, calls
// everybody who takes them (net/peer_stream.h); the gateways tell who that is. An incarnation is
// one life of a process: a call that broke is made again, and what was lost with it the protocol
// makes up for. A peer is gone when another process has its name, when it says so, or when it
// cannot be called any more. Its words, its reports and the news that it is gone go to the engine's
// inbox; its KV too. Any thread, but for the two ports, which are the engine loop's. Internal to
// net/.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/time.h"
#include "cluster/handoff_agent.h"
#include "memory/kv_arena.h"
#include "net/cluster_security.h"
#include "net/engine_loop.h"
#include "transfer/peer_transfer.h"

namespace sluice {

class GatewayLinks;
class KvConnections;
using KvWayList = std::vector<KvConnections*>;

// One that takes sequences over, as gateways tell of it.
struct PeerInfo {
  std::string name;
  std::string address;  // host:port
  std::uint64_t process = 0;
  std::uint64_t kv_layout = 0;  // fingerprint
};

struct PeerOptions {
  std::string name;
  Role role = Role::kUnified;
  std::uint64_t process = 0;  // of this life of the program
  KvIdentity kv;
  std::uint64_t kv_layout = 0;  // fingerprint of kv.layout
  std::int32_t vocabulary = 1 << 24;
  std::string listen;                        // host:port; empty: it takes nothing over
  std::string advertise;                     // what peers are told; empty: `listen`
  Duration lease = std::chrono::seconds(5);  // a source that cannot be heard is gone after it
  ArenaFile arena;                           // what peers of the same host may read, or none
  ClusterSecurity security;
};

class PeerLinks final : public PeerPort, public KvChannel {
 public:
  // This instance, as it numbers itself.
  static constexpr Placement kSelf{InstanceId{0}, Incarnation{1}};

  PeerLinks(PeerOptions options, const Clock& clock);
  ~PeerLinks() override;  // stops

  // Listens, and from set_peers() on calls. The engine and the links to gateways are to exist
  // until stop() has returned, and so are those of `kv`, the connections for KV alone.
  // kUnavailable: the address cannot be bound.
  [[nodiscard]] Status start(EngineLoop& engine, GatewayLinks& gateways, KvWayList kv);
  void stop();
  // Where peers reach it; empty: it takes nothing over. After start().
  [[nodiscard]] std::string address() const;

  // All that this gateway knows of; replaces what it said before.
  void set_peers(std::uint64_t gateway, std::vector<PeerInfo> peers);
  // The gateway is gone: who is connected stays.
  void forget_peers(std::uint64_t gateway);
  // Its present process, or kNoProcess.
  [[nodiscard]] std::uint64_t process_of(InstanceId instance) const;

  // PeerPort.
  void send(HandoffMail&& mail) override;
  void runs_at(const RequestOrigin& origin, const Placement& placement) override;
  void left(RequestId request) override;
  void seek_targets() override;
  void share(const LoadReport& report) override;
  void ended() override;

  // KvChannel.
  [[nodiscard]] bool send(const KvPeer& to, KvMessage&& message) override;
  [[nodiscard]] bool reads_ours(const KvPeer& peer) override;
  [[nodiscard]] std::shared_ptr<const PeerArena> arena_of(const KvPeer& peer) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
