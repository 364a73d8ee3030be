// KV between processes on TCP connections of its own, beside the gRPC stream of peers: from
// the sender's arena into the receiver's, scattered and gathered by the kernel, with no copy
// in user space and nothing buffered there. TCP's own window holds the sender back.
//
// A thread of its own ("kv") moves the bytes beside the engine's steps, a slice at a time and
// under a lock that expect(), close() and cancel() take as well: once close() has returned
// nothing writes those blocks any more, and once cancel() has returned nothing reads them (what
// is left of the frame is padding, which the receiver puts where nobody looks).
// Internal to net/.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/time.h"
#include "net/kv_jobs.h"

namespace sluice {

struct TcpTransferOptions {
  std::size_t frame_bytes = std::size_t{4} << 20;    // of KV; transfers to a peer take turns by it
  std::size_t slice_bytes = std::size_t{256} << 10;  // moved under the lock at a time
  std::size_t max_in_flight = 64;                    // tickets
  bool checksum = false;
  Duration patience = std::chrono::seconds(5);     // until a connection is welcome
  Duration first_retry = std::chrono::seconds(1);  // doubled up to thirty
};

class TcpTransfer final : public KvJobs {
 public:
  // `arena` is memory of the host. `wake`: poll() has something to say; called on the thread
  // "kv", which runs as long as this object.
  TcpTransfer(const KvView& arena, TcpTransferOptions options, std::function<void()> wake);
  ~TcpTransfer() override;

  [[nodiscard]] Status listen(const std::string& host, const std::string& port) override;
  [[nodiscard]] int port() const override;
  [[nodiscard]] std::string admit() override;
  void forget(const std::string& secret) override;
  void connect(const KvPeer& peer, const std::string& host, int port,
               const std::string& secret) override;
  void disconnect(const KvPeer& peer) override;

 private:
  class Impl;
  explicit TcpTransfer(std::unique_ptr<Impl> impl);
  void send(const KvPeer& peer, std::shared_ptr<KvJob> job) override;
  void look() override;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
