// KV between processes on TCP connections of its own, beside the gRPC stream of peers: from
// the sender's arena into the receiver's, scattered and gathered by the kernel, with no copy
// in user space and nothing buffered there. TCP's own window holds the sender back.
//
// A thread of its own ("kv") moves the bytes beside the engine's steps, a slice at a time and
// under a lock that expect(), close() and cancel() take as well: once close() has returned
// nothing writes those blocks any more, and once cancel() has returned nothing reads them (what
// is left of the frame is padding, which the receiver puts where nobody looks).
//
// Who may connect is decided on the stream of peers, which knows who is there: the target makes
// a way for each stream, a secret that only the other end of it is told, and forgets it with
// the stream. So a connection belongs to two incarnations. There is no TLS here: where peers
// are asked for certificates their KV goes over their stream.
//
// The KvTransfer part belongs to the engine's loop, the rest to any thread. Internal to net/.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "transfer/kv_ways.h"

namespace sluice {

struct TcpTransferOptions {
  std::size_t frame_bytes = std::size_t{4} << 20;    // of KV; transfers to a peer take turns by it
  std::size_t slice_bytes = std::size_t{256} << 10;  // moved under the lock at a time
  std::size_t max_in_flight = 64;                    // tickets
  bool checksum = false;
  Duration patience = std::chrono::seconds(5);     // until a connection is welcome
  Duration first_retry = std::chrono::seconds(1);  // doubled up to thirty
};

class TcpTransfer final : public KvStream {
 public:
  // `arena` is memory of the host. `wake`: poll() has something to say; called on the thread
  // "kv", which runs as long as this object.
  TcpTransfer(const KvView& arena, TcpTransferOptions options, std::function<void()> wake);
  ~TcpTransfer() override;

  // --- the target
  // Once, before any admit(). kUnavailable: the address cannot be bound.
  [[nodiscard]] Status listen(const std::string& host, const std::string& port);
  [[nodiscard]] int port() const;  // 0: it does not listen
  // A secret: who shows it may write what is reserved, from now on until forget().
  [[nodiscard]] std::string admit();
  void forget(const std::string& secret);

  // --- the source
  // Connects, again and again, until disconnect(). What is on its way when a connection
  // breaks fails.
  void connect(const KvPeer& peer, const std::string& host, int port, const std::string& secret);
  void disconnect(const KvPeer& peer);
  [[nodiscard]] bool reaches(const KvPeer& peer) const override;

  // --- the engine's loop
  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) override;
  void cancel(TransferTicket ticket) override;
  void poll(std::vector<TransferDone>& done) override;
  [[nodiscard]] bool idle() const override;
  [[nodiscard]] bool busy() const override;
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) override;
  void close(RequestId request) override;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
