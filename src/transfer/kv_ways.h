// Several ways for KV to another process, the best one taken for each transfer: blocks that
// the peer reads in place; a connection for KV alone, where there is one; or pieces that the
// channel carries as it carries words, which always works.
//
// Belongs to the engine's loop. A transfer stays on its way to its end: what fails there fails,
// and the handoff's state machine decides what follows.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "transfer/peer_transfer.h"

namespace sluice {

// A transfer that reaches some peers, at some times. start() for another one: kUnavailable.
class KvStream : public KvTransfer {
 public:
  [[nodiscard]] virtual bool reaches(const KvPeer& peer) const = 0;
};

class KvWays final : public KvTransfer {
 public:
  // The channel outlives it.
  KvWays(std::unique_ptr<PeerTransfer> pieces, std::unique_ptr<KvStream> stream, KvChannel& channel)
      : pieces_(std::move(pieces)), stream_(std::move(stream)), channel_(channel) {}

  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) override {
    const KvPeer peer{target.instance, target.incarnation};
    const bool streams = !channel_.reads_ours(peer) && stream_->reaches(peer);
    KvTransfer& way = streams ? static_cast<KvTransfer&>(*stream_) : *pieces_;
    return way.start(ticket, target, std::move(moves));
  }
  void cancel(TransferTicket ticket) override {
    pieces_->cancel(ticket);
    stream_->cancel(ticket);
  }
  void poll(std::vector<TransferDone>& done) override {
    pieces_->poll(done);
    stream_->poll(done);
  }
  [[nodiscard]] bool idle() const override { return pieces_->idle() && stream_->idle(); }
  [[nodiscard]] bool busy() const override { return pieces_->busy() || stream_->busy(); }
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) override {
    pieces_->expect(key, blocks);
    stream_->expect(key, blocks);
  }
  void close(RequestId request) override {
    pieces_->close(request);
    stream_->close(request);
  }

 private:
  const std::unique_ptr<PeerTransfer> pieces_;
  const std::unique_ptr<KvStream> stream_;
  KvChannel& channel_;
};

}  // namespace sluice
