// What goes over a connection that carries KV alone (net/tcp_transfer.h):
//
//   caller: Hello                answer: Welcome, or the end
//           Frame, blocks, KV            Receipt, text       for each frame, in order
//
// Little-endian, as KV itself is. A frame's KV is whole blocks in the order in which they
// are listed. Internal to net/.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "net/kv_secret.h"

namespace sluice {

static_assert(std::endian::native == std::endian::little);

struct KvHello {
  std::array<char, 12> magic{'s', 'l', 'u', 'i', 'c', 'e', ' ', 'K', 'V', ' ', '1', '\n'};
  std::uint32_t block_bytes = 0;
  KvSecret secret{};
};

struct KvWelcome {
  std::array<char, 8> magic{'w', 'e', 'l', 'c', 'o', 'm', 'e', '\n'};
};

struct KvFrame {
  std::uint64_t ticket = 0;
  std::uint64_t request = 0;
  std::uint32_t attempt = 0;
  std::int32_t life = 0;
  std::uint64_t checksum = 0;  // 0: none was taken
  std::uint32_t blocks = 0;    // so many numbers of 32 bits follow, and so many blocks
  std::uint32_t zero = 0;
};

struct KvFrameReceipt {
  std::uint64_t ticket = 0;
  std::uint32_t error = 0;  // 0: it is where it belongs; else one more than the ErrorCode
  std::uint32_t text = 0;   // so many bytes follow
};

inline constexpr std::uint32_t kMaxFrameBlocks = 1 << 16;
inline constexpr std::uint32_t kMaxReceiptText = 512;

static_assert(sizeof(KvHello) == 32 && sizeof(KvWelcome) == 8);
static_assert(sizeof(KvFrame) == 40 && sizeof(KvFrameReceipt) == 16);
static_assert(std::is_trivially_copyable_v<KvHello> && std::is_trivially_copyable_v<KvFrame>);

}  // namespace sluice
