// Moves KV blocks from this instance into blocks that another one has reserved.
//
// All methods belong to the engine's loop. An implementation may own a thread,
// but what it has done reaches the caller through poll() only, so that a
// simulated transfer can end in any order. Source and target blocks stay as they
// are until the ticket is reported, whatever the outcome: the caller holds them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/kv_layout.h"
#include "base/result.h"

namespace sluice {

using TransferTicket = Id<struct TransferTicketTag, std::uint64_t>;

struct BlockMove {
  BlockId from;  // of this instance
  BlockId to;    // of the peer's memory
};

enum class TransferOutcome : std::uint8_t { kDone, kFailed, kCancelled };

struct TransferDone {
  TransferTicket ticket;
  TransferOutcome outcome = TransferOutcome::kDone;
  std::int64_t bytes = 0;
  Error error;  // with kFailed
};

class KvTransfer {
 public:
  virtual ~KvTransfer() = default;

  // A word for metrics: local, shared, ucx, tcp.
  [[nodiscard]] virtual const char* transport() const = 0;

  // Begins and returns. `memory` is what the peer's grant said of its arena.
  // kBusy: too much is on its way; kInvalidArgument: not such a memory or block.
  // No move at all is done at the next poll().
  [[nodiscard]] virtual Status start(TransferTicket ticket, const std::string& memory,
                                     std::vector<BlockMove> moves) = 0;

  // Asks for an early end; the ticket is reported all the same.
  virtual void cancel(TransferTicket ticket) = 0;

  // Goes on for a bounded time and appends what has ended, each ticket once.
  virtual void poll(std::vector<TransferDone>& done) = 0;

  // Nothing is on its way.
  [[nodiscard]] virtual bool idle() const = 0;
};

}  // namespace sluice
