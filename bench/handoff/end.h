// One end of a way between two processes, with all that is real between an engine and
// the wire: the gRPC stream of peers, their words, PeerTransfer, the shared arena. In the
// place of the engine is a loop that does nothing, or steps that take a given time.
//
// Everything but the constructor and the destructor belongs to the loop's thread.
#pragma once

#include <grpcpp/server.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/inbox.h"
#include "base/time.h"
#include "memory/kv_arena.h"
#include "net/peer_stream.h"
#include "net/wire.h"

namespace sluice {

class HandoffEnd final : public proto::Peers::CallbackService,
                         public PeerStreamOwner,
                         public KvChannel {
 public:
  // The other end, as both number it.
  static constexpr KvPeer kOther{InstanceId{1}, Incarnation{1}};

  HandoffEnd(const KvArena& arena, const PeerTransferOptions& options);
  ~HandoffEnd() override;

  // The target's: listens on the loopback; the port.
  [[nodiscard]] int listen();
  // The source's: waits until it is welcome.
  void call(int port);

  // Until `done`: a round takes what has come, polls, and sleeps when nothing is to do.
  // `step`: how long the engine computes in every round.
  void run(Duration step, const std::function<bool()>& done);

  // As the source's engine does between two steps: begins, and sends what may go at once.
  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves);
  // As the target's engine: these may be written.
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) {
    transfer_.expect(key, blocks);
  }
  [[nodiscard]] bool maps_arena() const { return stream_->reads_ours; }
  // From here on pieces name blocks of the shared arena, or carry their bytes.
  void name_blocks(bool yes) { names_blocks_ = yes; }

  // A word there, and its answer: what a reservation's round trip takes, without the engine.
  [[nodiscard]] Duration round_trip();
  // What has ended since start().
  [[nodiscard]] const std::vector<TransferDone>& done() const { return done_; }
  [[nodiscard]] bool over() const { return over_; }

  // KvChannel.
  bool send(const KvPeer& to, KvMessage&& message) override;
  bool reads_ours(const KvPeer&) override { return names_blocks_ && stream_->reads_ours; }
  std::shared_ptr<const PeerArena> arena_of(const KvPeer&) override { return stream_->arena; }

 private:
  struct Broken {};
  using News = std::variant<PeerWord, Broken>;

  grpc::ServerBidiReactor<proto::PeerMessage, proto::PeerMessage>* HandOver(
      grpc::CallbackServerContext* context) override;
  grpc::Status on_first(const std::shared_ptr<PeerStream>& stream,
                        proto::PeerMessage& message) override;
  grpc::Status on_message(PeerStream& stream, proto::PeerMessage& message) override;
  void on_broken(PeerStream& stream) override;
  void on_done(std::shared_ptr<PeerStream> stream, const grpc::Status& status) override;

  void say(const HandoffMessage& message);
  void handle(News& news);

  const SteadyClock clock_;
  const KvIdentity kv_;
  PeerTransfer transfer_;
  proto::PeerMessage hello_;
  std::unique_ptr<grpc::Server> server_;
  std::shared_ptr<PeerStream> stream_;
  Inbox<News> inbox_{1};  // all of it is urgent
  Inbox<std::shared_ptr<PeerStream>> opened_{1};
  Inbox<std::shared_ptr<PeerStream>> ended_{1};
  std::vector<News> news_;
  std::vector<TransferDone> done_;
  bool names_blocks_ = false;
  bool answered_ = false;
  bool over_ = false;
};

}  // namespace sluice
