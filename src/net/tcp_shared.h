// What KV over TCP adds to what it shares with the engine's loop. Internal to net/.
#pragma once

#include <algorithm>
#include <bit>
#include <boost/asio/buffer.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "net/kv_jobs.h"
#include "net/tcp_transfer.h"
#include "transfer/peer_transfer.h"

namespace sluice {

struct TcpShared : KvShared {
  TcpShared(const KvView& view, TcpTransferOptions o, std::function<void()> w)
      : KvShared(view, "tcp", std::move(w)), options(o) {}

  const TcpTransferOptions options;

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
