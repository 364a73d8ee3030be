// Several ways for KV to another process, the best one taken for each transfer: blocks that
// the peer reads in place; a connection for KV alone, where there are some; or pieces that the
// channel carries as it carries words, which always works.
//
// Belongs to the engine's loop. A transfer stays on its way to its end: what fails there fails,
// and the handoff's state machine decides what follows.
#pragma once

#include <algorithm>
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
  // The first of `streams` that reaches a peer is taken. The channel outlives it.
  KvWays(std::unique_ptr<PeerTransfer> pieces, std::vector<std::unique_ptr<KvStream>> streams,
         KvChannel& channel)
      : pieces_(std::move(pieces)), streams_(std::move(streams)), channel_(channel) {}

  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) override {
    const KvPeer peer{target.instance, target.incarnation};
    KvTransfer* way = pieces_.get();
    if (!channel_.reads_ours(peer)) {
      const auto it = std::find_if(streams_.begin(), streams_.end(),
                                   [&](const auto& stream) { return stream->reaches(peer); });
      if (it != streams_.end()) way = it->get();
    }
    return way->start(ticket, target, std::move(moves));
  }
  void cancel(TransferTicket ticket) override {
    pieces_->cancel(ticket);
    for (const auto& stream : streams_) stream->cancel(ticket);
  }
  void poll(std::vector<TransferDone>& done) override {
    pieces_->poll(done);
    for (const auto& stream : streams_) stream->poll(done);
  }
  [[nodiscard]] bool idle() const override {
    return pieces_->idle() && std::all_of(streams_.begin(), streams_.end(),
                                          [](const auto& stream) { return stream->idle(); });
  }
  [[nodiscard]] bool busy() const override {
    return pieces_->busy() || std::any_of(streams_.begin(), streams_.end(),
                                          [](const auto& stream) { return stream->busy(); });
  }
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) override {
    pieces_->expect(key, blocks);
    for (const auto& stream : streams_) stream->expect(key, blocks);
  }
  void close(RequestId request) override {
    pieces_->close(request);
    for (const auto& stream : streams_) stream->close(request);
  }

 private:
  const std::unique_ptr<PeerTransfer> pieces_;
  const std::vector<std::unique_ptr<KvStream>> streams_;
  KvChannel& channel_;
};

}  // namespace sluice
