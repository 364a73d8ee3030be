// What goes over UCX for KV (net/ucx_transfer.h), as active messages:
//
//   caller: Hello                answer: Welcome, or the end
//           Frame, blocks, KV            Receipt, text       for each frame
//
// The first of each is the message's header, the rest its payload. Little-endian, as KV is; a
// frame's KV is whole blocks in the order in which they are listed. Internal to net/.
#pragma once

#include <array>
#include <cstdint>

#include "net/kv_secret.h"
#include "net/tcp_frames.h"

namespace sluice {

enum UcxMessage : unsigned { kUcxHello, kUcxWelcome, kUcxFrame, kUcxReceipt };

struct UcxHello {
  std::array<char, 12> magic{'s', 'l', 'u', 'i', 'c', 'e', ' ', 'U', 'C', 'X', ' ', '1'};
  std::uint32_t block_bytes = 0;
  KvSecret secret{};
};

struct UcxWelcome {
  std::array<char, 8> magic{'w', 'e', 'l', 'c', 'o', 'm', 'e', '\n'};
};

using UcxFrame = KvFrame;
using UcxReceipt = KvFrameReceipt;

static_assert(sizeof(UcxHello) == 32 && sizeof(UcxWelcome) == 8);

}  // namespace sluice
