// For tests: device memory that is the host's after all, and counts what is copied.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/kv_layout.h"

namespace sluice {

class FakeDeviceKv final : public DeviceKv {
 public:
  FakeDeviceKv(const KvLayout& layout, std::int32_t num_blocks)
      : bytes_(static_cast<std::size_t>(num_blocks) * layout.block_bytes()),
        memory_{.base = bytes_.data(), .layout = layout, .num_blocks = num_blocks} {}
  FakeDeviceKv(const FakeDeviceKv&) = delete;
  FakeDeviceKv& operator=(const FakeDeviceKv&) = delete;

  [[nodiscard]] KvView view() override {
    return {.base = nullptr,
            .layout = memory_.layout,
            .num_blocks = memory_.num_blocks,
            .device = this};
  }
  void read(BlockId block, std::span<std::byte> bytes) const override {
    ++num_reads_;
    memory_.read(block, bytes);
  }
  void write(BlockId block, std::span<const std::byte> bytes) override {
    ++num_writes_;
    memory_.write(block, bytes);
  }

  // What a test alone may look at.
  [[nodiscard]] const KvView& memory() const { return memory_; }
  [[nodiscard]] int num_reads() const { return num_reads_; }
  [[nodiscard]] int num_writes() const { return num_writes_; }

 private:
  std::vector<std::byte> bytes_;
  const KvView memory_;
  mutable int num_reads_ = 0;
  int num_writes_ = 0;
};

}  // namespace sluice
