// How the bytes of one KV block are laid out: a value that the memory manager,
// the graph, the attention kernel and transfers all read.
//
// A block holds K and V of all layers for `block_tokens` consecutive tokens of
// one sequence in one piece of memory, ordered
//
//   [layer][k | v][kv head][token][dim]
//
// so that the tile of one head in one layer, [token][dim], is contiguous. K is
// stored after rotary embedding. A q8_0 row is its elements as 8-bit integers,
// then one f16 scale for each 32 of them: 8.5 bits an element, as in ggml, but
// with the integers side by side so that vectors load them whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "base/ids.h"

namespace sluice {

enum class KvType : std::uint8_t { kF16, kQ8_0 };

// Elements that share a scale; rows of a type with scales are whole groups.
inline constexpr std::int32_t kKvGroup = 32;

[[nodiscard]] constexpr std::string_view kv_type_name(KvType type) {
  return type == KvType::kQ8_0 ? "q8_0" : "f16";
}
[[nodiscard]] constexpr std::optional<KvType> kv_type_of(std::string_view name) {
  if (name == kv_type_name(KvType::kF16)) return KvType::kF16;
  if (name == kv_type_name(KvType::kQ8_0)) return KvType::kQ8_0;
  return std::nullopt;
}
[[nodiscard]] constexpr std::size_t kv_row_bytes(KvType type, std::int32_t dim) {
  const auto elements = static_cast<std::size_t>(dim);
  return type == KvType::kQ8_0 ? elements + elements / kKvGroup * 2 : elements * 2;
}

struct KvLayout {
  std::int32_t num_layers = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim_k = 0;  // elements of one K row of one head
  std::int32_t head_dim_v = 0;
  std::int32_t block_tokens = 16;
  KvType type = KvType::kF16;

  friend bool operator==(const KvLayout&, const KvLayout&) = default;

  // Whether rows can be of this type at all.
  [[nodiscard]] constexpr bool holds_whole_groups() const {
    return type == KvType::kF16 || (head_dim_k % kKvGroup == 0 && head_dim_v % kKvGroup == 0);
  }
  [[nodiscard]] constexpr std::size_t k_row_bytes() const { return kv_row_bytes(type, head_dim_k); }
  [[nodiscard]] constexpr std::size_t v_row_bytes() const { return kv_row_bytes(type, head_dim_v); }
  [[nodiscard]] constexpr std::size_t k_tile_bytes() const {
    return k_row_bytes() * static_cast<std::size_t>(block_tokens);
  }
  [[nodiscard]] constexpr std::size_t v_tile_bytes() const {
    return v_row_bytes() * static_cast<std::size_t>(block_tokens);
  }
  [[nodiscard]] constexpr std::size_t layer_bytes() const {
    return (k_tile_bytes() + v_tile_bytes()) * static_cast<std::size_t>(num_kv_heads);
  }
  [[nodiscard]] constexpr std::size_t block_bytes() const {
    return layer_bytes() * static_cast<std::size_t>(num_layers);
  }
  [[nodiscard]] constexpr std::size_t token_bytes() const {
    return block_bytes() / static_cast<std::size_t>(block_tokens);
  }
  // Where the tile of a head starts inside a block.
  [[nodiscard]] constexpr std::size_t k_offset(std::int32_t layer, std::int32_t head) const {
    return layer_bytes() * static_cast<std::size_t>(layer) +
           k_tile_bytes() * static_cast<std::size_t>(head);
  }
  [[nodiscard]] constexpr std::size_t v_offset(std::int32_t layer, std::int32_t head) const {
    return layer_bytes() * static_cast<std::size_t>(layer) +
           k_tile_bytes() * static_cast<std::size_t>(num_kv_heads) +
           v_tile_bytes() * static_cast<std::size_t>(head);
  }
  // Blocks that hold `tokens` tokens.
  [[nodiscard]] constexpr std::int32_t blocks_for(std::int64_t tokens) const {
    return static_cast<std::int32_t>((tokens + block_tokens - 1) / block_tokens);
  }
};

struct KvView;

// KV memory that a device alone addresses: blocks are copied whole, in the layout's
// order of bytes. Any loop that owns the blocks may; a copy is done on return.
class DeviceKv {
 public:
  virtual ~DeviceKv() = default;
  [[nodiscard]] virtual KvView view() = 0;
  virtual void read(BlockId block, std::span<std::byte> bytes) const = 0;
  virtual void write(BlockId block, std::span<const std::byte> bytes) = 0;
};

// The arena as its users see it: block b is at base + b * layout.block_bytes(), or
// in a device's memory. Not owned; the arena outlives every user.
struct KvView {
  std::byte* base = nullptr;  // null: see `device`
  KvLayout layout;
  std::int32_t num_blocks = 0;
  DeviceKv* device = nullptr;

  [[nodiscard]] bool valid() const { return base != nullptr || device != nullptr; }
  // A block's bytes to and from host memory, wherever the block lies.
  void read(BlockId block, std::span<std::byte> bytes) const {
    if (device != nullptr) return device->read(block, bytes);
    std::memcpy(bytes.data(), at(block), bytes.size());
  }
  void write(BlockId block, std::span<const std::byte> bytes) const {
    if (device != nullptr) return device->write(block, bytes);
    std::memcpy(at(block), bytes.data(), bytes.size());
  }
  // Where the host addresses it.
  [[nodiscard]] std::byte* at(BlockId block) const {
    return base + static_cast<std::size_t>(block.value) * layout.block_bytes();
  }
};

}  // namespace sluice
