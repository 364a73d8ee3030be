// Moves KV blocks from this instance into blocks that another one has reserved.
//
// All methods belong to the engine's loop. An implementation may own a thread,
// but what it has done reaches the caller through poll() only, so that a
// simulated transfer can end in any order. Source and target blocks stay as they
// are until the ticket is reported, whatever the outcome: the caller holds them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/kv_layout.h"
#include "base/result.h"
#include "transfer/handoff_key.h"

namespace sluice {

using TransferTicket = Id<struct TransferTicketTag, std::uint64_t>;

struct BlockMove {
  BlockId from;  // of this instance
  BlockId to;    // of the peer's memory
};

// Whose blocks are written, and for what they were reserved.
struct TransferTarget {
  InstanceId instance;
  Incarnation incarnation;
  HandoffKey key;
  std::string memory;  // what its grant said of its arena
};

enum class TransferOutcome : std::uint8_t { kDone, kFailed, kCancelled };

struct TransferDone {
  TransferTicket ticket;
  TransferOutcome outcome = TransferOutcome::kDone;
  std::int64_t bytes = 0;
  Error error;                 // with kFailed
  const char* transport = "";  // what carried it: a word for metrics
};

class KvTransfer {
 public:
  virtual ~KvTransfer() = default;

  // Begins and returns. kBusy: too much is on its way; kInvalidArgument: not such a
  // memory or block. No move at all is done at the next poll().
  [[nodiscard]] virtual Status start(TransferTicket ticket, const TransferTarget& target,
                                     std::vector<BlockMove> moves) = 0;

  // Asks for an early end; the ticket is reported all the same.
  virtual void cancel(TransferTicket ticket) = 0;

  // Goes on for a bounded time and appends what has ended, each ticket once.
  virtual void poll(std::vector<TransferDone>& done) = 0;

  // Nothing is on its way.
  [[nodiscard]] virtual bool idle() const = 0;

  // poll() has something to do, without waiting for anybody.
  [[nodiscard]] virtual bool busy() const { return !idle(); }

  // The receiving side: from here on peers may write these blocks, for this key and
  // no other; until close(), after which the blocks are somebody else's.
  virtual void expect(const HandoffKey&, std::span<const BlockId>) {}
  virtual void close(RequestId) {}
};

}  // namespace sluice
