// One instance for gateways in other processes: an engine's loop and its links.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "base/result.h"
#include "base/time.h"
#include "memory/kv_arena.h"
#include "model/sampler.h"
#include "net/cluster_security.h"
#include "net/local_cluster.h"
#include "scheduling/load_report.h"

namespace sluice {

enum class KvUcx : std::uint8_t { kOff, kAuto, kOn };

// How an instance takes part in handoffs to and from others.
struct InstanceHandoffs {
  KvView arena;                        // that its runner is bound to; none: it takes no part
  ArenaFile file;                      // of the arena, for others of the host; or none
  std::string listen = "127.0.0.1:0";  // where others reach it; who only prefills does not listen
  std::string advertise;               // what they are told; empty: `listen`
  std::string policy = "least-peak";   // of its local scheduler; one of policy_names()
  Duration lease = std::chrono::seconds(10);  // of reservations and of kept KV
  // KV comes and goes on connections of its own (net/tcp_transfer.h), where peers do not show
  // certificates; it comes at this port of `listen`'s host, 0: a free one.
  bool kv_tcp = true;
  std::uint16_t kv_port = 0;
  // The same over UCX (net/ucx_transfer.h): where there is RDMA, or wherever UCX finds a way.
  KvUcx kv_ucx = KvUcx::kAuto;
  std::uint16_t kv_ucx_port = 0;
  bool checksum = false;  // of KV that is sent
};

struct InstanceProcessOptions {
  std::string name;  // the same after a restart
  Role role = Role::kUnified;
  std::vector<std::string> join;  // host:port of gateways, or etcd://host:port/cluster
  std::uint64_t model = 0;        // fingerprints of the model, and of how KV is laid out
  std::uint64_t kv_layout = 0;
  std::string model_name;
  std::int32_t vocabulary = 1 << 24;
  ClusterSecurity security;
  std::size_t inbox_capacity = 4096;
  InstanceHandoffs handoffs;
};

// Any thread but for construction and destruction.
class InstanceProcess final {
 public:
  // Starts the threads. kUnavailable, of others: UCX is wanted and not there. The runner is bound
  // to KV memory of `engine.kv` blocks; that memory and the references outlive this.
  // kInvalidArgument: says what is wrong.
  [[nodiscard]] static Result<std::unique_ptr<InstanceProcess>> start(
      InstanceProcessOptions options, LocalInstance instance, const SamplerFactory& samplers,
      const Clock& clock);
  ~InstanceProcess();  // stops

  // Gateways that it serves now.
  [[nodiscard]] std::int32_t attached() const;
  // Requests that have not ended.
  [[nodiscard]] std::int32_t active() const;
  // The engine has failed, or a gateway asked it to drain: the process is to end.
  [[nodiscard]] bool engine_ended() const;
  [[nodiscard]] bool drain_asked() const;

  // From now on nothing new is wanted; what runs goes on.
  void drain();
  // What runs here goes on elsewhere, if there is another instance.
  void stop();
  // After stop(): Engine::learned_lengths().
  [[nodiscard]] std::string learned_lengths() const;

 private:
  class Impl;
  explicit InstanceProcess(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
