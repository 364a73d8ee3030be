// What two instances of different processes say to each other while KV goes over.
// Plain values, which any ordered channel can carry.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "transfer/kv_transfer.h"

namespace sluice {

// One incarnation of another instance.
struct KvPeer {
  InstanceId instance;
  Incarnation incarnation;
  friend auto operator<=>(const KvPeer&, const KvPeer&) = default;
};

// KV of some blocks: their bytes, one block after the other; or, to who can read the
// sender's arena, where they lie in it.
struct KvPiece {
  TransferTicket ticket;
  HandoffKey key;             // of the reservation
  std::vector<BlockId> to;    // blocks of the receiver
  std::vector<BlockId> from;  // blocks of the sender, as many; or none, and `bytes`
  std::string bytes;
  std::uint64_t checksum = 0;  // of `bytes`; 0: none was taken
};

// The piece is where it belongs, or `error` says why not. Pieces of a channel are
// answered in order.
struct KvReceipt {
  TransferTicket ticket;
  Error error;
  bool ok = true;
};

using KvMessage = std::variant<KvPiece, KvReceipt>;

}  // namespace sluice
