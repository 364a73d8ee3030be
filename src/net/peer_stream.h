// One open call between two instances: from the one that hands over, the source, to
// the one that takes, the target. Either end is a PeerStream.
//
// Nobody waits for the other side (net/gathered_writes.h). The owner hears of each
// message in order, once that the stream broke, and last of all that it is done. Any
// thread. Internal to net/.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/time.h"
#include "net/gathered_writes.h"
#include "net/proto/cluster.grpc.pb.h"
#include "net/security.h"
#include "scheduling/placement.h"
#include "transfer/peer_transfer.h"

namespace sluice {

class PeerStream;

class PeerStreamOwner {
 public:
  virtual ~PeerStreamOwner() = default;
  // The first message, hello or welcome; then every other. Not OK: the stream ends with it.
  virtual grpc::Status on_first(const std::shared_ptr<PeerStream>& stream,
                                proto::PeerMessage& message) = 0;
  virtual grpc::Status on_message(PeerStream& stream, proto::PeerMessage& message) = 0;
  virtual void on_broken(PeerStream& stream) = 0;
  // The stream is to be destroyed by a thread that is not gRPC's.
  virtual void on_done(std::shared_ptr<PeerStream> stream, const grpc::Status& status) = 0;
};

// Who is at the other end; fixed by on_first().
struct PeerIdentity {
  Placement placement;  // as this process numbers it
  std::uint64_t process = 0;
  std::string name;
};

class PeerStream : public std::enable_shared_from_this<PeerStream> {
 public:
  PeerStream(PeerStreamOwner& owner, bool outgoing,
             std::function<void(const proto::PeerMessage&)> start_write)
      : owner_(owner), outgoing_(outgoing), writes_(std::move(start_write)) {}
  virtual ~PeerStream() = default;
  PeerStream(const PeerStream&) = delete;
  PeerStream& operator=(const PeerStream&) = delete;

  // False: it is over, or the peer is too far behind. `bytes` is about what `fill` adds.
  template <class Fill>
  bool send(std::size_t bytes, const Fill& fill) {
    return writes_.add(bytes, fill);
  }
  // Nothing is sent or heard from now on. Again does nothing.
  virtual void end(const grpc::Status& status = grpc::Status::CANCELLED) = 0;

  // By on_first(), once: it is open from here on.
  void become(PeerIdentity identity) {
    identity_ = std::move(identity);
    known_.store(true);
  }
  [[nodiscard]] const PeerIdentity& identity() const { return identity_; }
  [[nodiscard]] bool outgoing() const { return outgoing_; }
  // Both sides have said who they are, and nothing has ended it.
  [[nodiscard]] bool open() const { return known_.load() && !ended_.load(); }
  [[nodiscard]] bool was_open() const { return known_.load(); }

  // At the source: the target reads this process's arena. At the target: the source's arena,
  // or null. Fixed by on_first().
  bool reads_ours = false;
  std::shared_ptr<const PeerArena> arena;
  // At the target: what the source shows where its KV comes, by connection (PeerLinks::start());
  // or none. Fixed by on_first().
  std::vector<std::string> kv_secrets;

 protected:
  // Takes what incoming_ holds; true: read on.
  bool take();

  PeerStreamOwner& owner_;
  const bool outgoing_;
  GatheredWrites<proto::PeerMessage> writes_;
  proto::PeerMessage incoming_;
  PeerIdentity identity_;
  std::atomic<bool> known_{false};
  std::atomic<bool> ended_{false};
  std::shared_ptr<PeerStream> self_;
};

// To `address`, whose certificate is to be for `host`. Nothing happens before begin_call(),
// whose `hello` is the first message.
[[nodiscard]] std::shared_ptr<PeerStream> make_call(PeerStreamOwner& owner,
                                                    const std::string& address,
                                                    const std::string& host,
                                                    const ClusterSecurity& security);
void begin_call(const std::shared_ptr<PeerStream>& call, const proto::PeerMessage& hello);

// The other ends of it, for a service to return. This one only says `status`.
[[nodiscard]] grpc::ServerBidiReactor<proto::PeerMessage, proto::PeerMessage>* refuse_peer(
    const grpc::Status& status);
// `stream` is owned by itself until it is done.
struct AcceptedPeer {
  grpc::ServerBidiReactor<proto::PeerMessage, proto::PeerMessage>* reactor = nullptr;
  std::shared_ptr<PeerStream> stream;
};
// Nothing is read before begin_accepted().
[[nodiscard]] AcceptedPeer accept_peer(PeerStreamOwner& owner,
                                       grpc::CallbackServerContext& context);
void begin_accepted(const AcceptedPeer& accepted);

}  // namespace sluice
