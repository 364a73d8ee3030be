// KV between instances of different processes, in pieces over an ordered channel.
//
// Both sides in one object. The source sends pieces and waits for receipts, so
// many in flight to a peer and no more. The receiver checks each piece against
// what is reserved just now (expect(), close()), so that a late one never writes
// a block that has found another owner, and copies a bounded amount a poll. Where
// the peer can map this instance's arena, a piece names blocks instead of carrying
// them, and the receiver's copy is the only one.
//
// Belongs to the engine's loop; threads and sockets are the channel's affair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transfer/expected_kv.h"
#include "transfer/kv_messages.h"
#include "transfer/kv_transfer.h"

namespace sluice {

// What a grant says of an arena that is reached by pieces.
inline constexpr const char* kPieceMemory = "pieces";

// Another process's arena, as far as it can be read here; unmapped with the last owner.
class PeerArena {
 public:
  virtual ~PeerArena() = default;
  [[nodiscard]] virtual std::span<const std::byte> bytes() const = 0;
};

// The way to the peers. Calls return at once.
class KvChannel {
 public:
  virtual ~KvChannel() = default;
  // False: the peer is gone, or too far behind; poll() then says kTransport.
  [[nodiscard]] virtual bool send(const KvPeer& to, KvMessage&& message) = 0;
  // The peer reads this instance's arena: pieces may name blocks of it.
  [[nodiscard]] virtual bool reads_ours(const KvPeer& peer) = 0;
  // The peer's arena; null: it is not to be read here.
  [[nodiscard]] virtual std::shared_ptr<const PeerArena> arena_of(const KvPeer& peer) = 0;
};

struct PeerTransferOptions {
  std::size_t piece_bytes = std::size_t{1} << 20;          // of KV that a message carries,
  std::size_t named_piece_bytes = std::size_t{256} << 20;  // or names
  std::int32_t pieces_in_flight = 32;                      // to a peer
  std::size_t bytes_a_poll = std::size_t{64} << 20;        // copied
  std::size_t max_in_flight = 64;                          // tickets
  std::size_t max_pieces = 1024;                           // come and not copied yet
  bool checksum = false;                                   // of bytes that are carried
};

class PeerTransfer final : public KvTransfer {
 public:
  // The arena's memory and the channel outlive the transfer.
  PeerTransfer(const KvView& arena, PeerTransferOptions options, KvChannel& channel);

  // From the channel, in the order in which it was said.
  void on_message(const KvPeer& from, KvMessage message);
  // What was on its way to it is lost.
  void peer_lost(const KvPeer& peer);

  [[nodiscard]] Status start(TransferTicket ticket, const TransferTarget& target,
                             std::vector<BlockMove> moves) override;
  void cancel(TransferTicket ticket) override;
  void poll(std::vector<TransferDone>& done) override;
  [[nodiscard]] bool idle() const override { return jobs_.empty() && arrived_.empty(); }
  [[nodiscard]] bool busy() const override;
  void expect(const HandoffKey& key, std::span<const BlockId> blocks) override {
    expected_.expect(key, blocks);
  }
  void close(RequestId request) override { expected_.close(request); }

 private:
  struct Job {
    TransferTicket ticket;
    KvPeer peer;
    HandoffKey key;
    std::vector<BlockMove> moves;
    std::size_t next = 0;         // the first that was not sent
    std::int32_t unanswered = 0;  // pieces
    bool cancelled = false;
    bool named = false;  // blocks are named, not carried
    std::optional<Error> error;
  };
  struct Arrived {
    KvPeer from;
    KvPiece piece;
    std::size_t next = 0;  // the first block that was not copied
  };

  [[nodiscard]] bool may_send(const Job& job) const;
  void send_piece(Job& job);
  void copy_arrived();
  [[nodiscard]] Status copy(Arrived& arrived, std::size_t& left);
  [[nodiscard]] Status check(const Arrived& arrived) const;

  const KvView arena_;
  const PeerTransferOptions options_;
  KvChannel& channel_;
  std::deque<Job> jobs_;
  std::map<KvPeer, std::int32_t> in_flight_;  // pieces
  std::deque<Arrived> arrived_;
  ExpectedKv expected_;
};

// Of a piece's bytes; never 0.
[[nodiscard]] std::uint64_t kv_checksum(std::span<const char> bytes);

}  // namespace sluice
