// Connections of their own for KV between processes, beside the gRPC stream of peers.
//
// Who may connect is decided on the stream of peers, which knows who is there: the target makes
// a way for each stream, a secret that only the other end of it is told, and forgets it with
// the stream. So a connection belongs to two incarnations. Nothing is encrypted: where peers
// are asked for certificates their KV goes over their stream.
//
// The KvTransfer part belongs to the engine's loop, the rest to any thread. Internal to net/.
#pragma once

#include <string>

#include "transfer/kv_ways.h"

namespace sluice {

class KvConnections : public KvStream {
 public:
  // A word for metrics, and by which the two ends of a stream find each other's.
  [[nodiscard]] virtual const char* transport() const = 0;

  // --- the target
  // Once, before any admit(). kUnavailable: the address cannot be bound.
  [[nodiscard]] virtual Status listen(const std::string& host, const std::string& port) = 0;
  [[nodiscard]] virtual int port() const = 0;  // 0: it does not listen
  // A secret: who shows it may write what is reserved, from now on until forget().
  [[nodiscard]] virtual std::string admit() = 0;
  virtual void forget(const std::string& secret) = 0;

  // --- the source
  // Connects, again and again, until disconnect(). What is on its way when a connection
  // breaks fails.
  virtual void connect(const KvPeer& peer, const std::string& host, int port,
                       const std::string& secret) = 0;
  virtual void disconnect(const KvPeer& peer) = 0;
};

}  // namespace sluice
