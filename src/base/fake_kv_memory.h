// KV memory of a test, whose blocks are filled with one value each.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/kv_layout.h"

namespace sluice {

class FakeKvMemory final {
 public:
  FakeKvMemory(const KvLayout& layout, std::int32_t blocks)
      : layout_(layout),
        blocks_(blocks),
        bytes_(static_cast<std::size_t>(blocks) * layout.block_bytes()) {}

  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }
  [[nodiscard]] KvView view() { return {bytes_.data(), layout_, blocks_}; }
  void fill(std::int32_t block, int value) { std::memset(at(block), value, layout_.block_bytes()); }
  // -1: it does not hold one value.
  [[nodiscard]] int value_of(std::int32_t block) {
    const std::byte* begin = at(block);
    const std::byte value = *begin;
    const bool same = std::all_of(begin, begin + layout_.block_bytes(),
                                  [value](std::byte b) { return b == value; });
    return same ? static_cast<int>(value) : -1;
  }

 private:
  [[nodiscard]] std::byte* at(std::int32_t block) {
    return bytes_.data() + static_cast<std::size_t>(block) * layout_.block_bytes();
  }

  const KvLayout layout_;
  const std::int32_t blocks_;
  std::vector<std::byte> bytes_;
};

}  // namespace sluice
