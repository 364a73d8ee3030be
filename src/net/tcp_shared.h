// What the engine's loop and the thread "kv" share of a TcpTransfer. Internal to net/.
#pragma once

#include <algorithm>
#include <bit>
#include <boost/asio/buffer.hpp>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "net/tcp_transfer.h"
#include "transfer/expected_kv.h"

namespace sluice {

// One ticket. Belongs to the thread "kv", but for `cancelled`.
struct TcpJob {
  TransferTicket ticket;
  HandoffKey key;
  std::vector<BlockMove> moves;
  std::size_t next = 0;         // the first that was not sent
  std::int32_t unanswered = 0;  // frames
  std::optional<Error> error;
  bool cancelled = false;  // guarded by TcpShared::moving
};

struct TcpShared {
  TcpShared(const KvView& view, TcpTransferOptions o, std::function<void()> w)
      : arena(view), options(o), wake(std::move(w)) {}

  const KvView arena;
  const TcpTransferOptions options;
  const std::function<void()> wake;

  std::mutex moving;    // held while bytes leave the arena or enter it
  ExpectedKv expected;  // guarded by moving

  mutable std::mutex telling;
  std::vector<TransferDone> done;  // guarded by telling
  std::set<KvPeer> reached;        // guarded by telling

  // `outcome` other than kFailed leaves `error` empty.
  void tell(const TcpJob& job, TransferOutcome outcome, Error error) {
    TransferDone told;
    told.ticket = job.ticket;
    told.outcome = outcome;
    told.bytes = static_cast<std::int64_t>(job.next * arena.layout.block_bytes());
    told.error = std::move(error);
    told.transport = "tcp";
    {
      const std::lock_guard lock(telling);
      done.push_back(std::move(told));
    }
    wake();
  }

  // A frame's checksum begins with 0, goes over its blocks, and is not 0 then.
  [[nodiscard]] std::uint64_t add_to_checksum(std::uint64_t sum, BlockId block) const {
    const auto* bytes = reinterpret_cast<const char*>(arena.at(block));
    sum = std::rotl(sum, 1) ^ kv_checksum({bytes, arena.layout.block_bytes()});
    return sum == 0 ? 1 : sum;
  }

  // The bytes [at, at + slice_bytes) of `blocks`, one block after the other.
  template <class Buffer>
  void slice(std::span<const BlockId> blocks, std::size_t at, std::vector<Buffer>& parts) const {
    constexpr std::size_t kMaxParts = 64;  // that one call to the system takes
    const std::size_t block_bytes = arena.layout.block_bytes();
    const std::size_t end = std::min(at + options.slice_bytes, blocks.size() * block_bytes);
    parts.clear();
    while (at < end && parts.size() < kMaxParts) {
      const std::size_t within = at % block_bytes;
      const std::size_t bytes = std::min(block_bytes - within, end - at);
      parts.emplace_back(arena.at(blocks[at / block_bytes]) + within, bytes);
      at += bytes;
    }
  }
};

}  // namespace sluice
