// KV blocks in a device's memory: one tensor a layer, so that none grows past what
// a device binds at once.
//
// The tensor of a layer is f16 rows of one head's K or V of one token, and block b
// of it is rows [b * r, (b + 1) * r) in the order of KvLayout: [k | v][head][token].
// A block's bytes are thus those of a CPU's arena, cut by layers. Zeroed at start:
// what masks hide must be numbers. Owned by the composition root; outlives runners.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "base/result.h"
#include "model/ggml/ggml_handles.h"

namespace sluice {

class GgmlDeviceKv final : public DeviceKv {
 public:
  // kInvalidArgument: a layout that stock kernels do not read; kNeverFits: the device
  // does not have that much.
  [[nodiscard]] static Result<std::unique_ptr<GgmlDeviceKv>> make(ggml_backend_dev_t device,
                                                                  const KvLayout& layout,
                                                                  std::int32_t num_blocks);

  [[nodiscard]] KvView view() override;
  void read(BlockId block, std::span<std::byte> bytes) const override;
  void write(BlockId block, std::span<const std::byte> bytes) override;
  // Block to block, all of it, on the device.
  void copy(BlockId from, BlockId to);

  // f16 [head dim, rows].
  [[nodiscard]] ggml_tensor* layer(std::size_t index) const { return layers_[index]; }
  [[nodiscard]] std::int64_t rows_per_block() const;

 private:
  GgmlDeviceKv(const KvLayout& layout, std::int32_t num_blocks);
  [[nodiscard]] std::size_t offset_of(BlockId block) const;

  const KvLayout layout_;
  const std::int32_t num_blocks_;
  GgmlContext context_;
  std::vector<GgmlBuffer> buffers_;
  std::vector<ggml_tensor*> layers_;
};

}  // namespace sluice
