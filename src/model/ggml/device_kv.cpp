#include "model/ggml/device_kv.h"

#include <fmt/format.h>

#include "base/check.h"

namespace sluice {
namespace {

double mebibytes(std::size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace

GgmlDeviceKv::GgmlDeviceKv(const KvLayout& layout, std::int32_t num_blocks)
    : layout_(layout), num_blocks_(num_blocks) {
  const auto layers = static_cast<std::size_t>(layout.num_layers);
  context_.reset(ggml_init({layers * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  CHECK(context_ != nullptr);
  for (std::size_t i = 0; i < layers; ++i) {
    layers_.push_back(ggml_new_tensor_2d(context_.get(), GGML_TYPE_F16, layout.head_dim_k,
                                         rows_per_block() * num_blocks));
  }
}

Result<std::unique_ptr<GgmlDeviceKv>> GgmlDeviceKv::make(ggml_backend_dev_t device,
                                                         const KvLayout& layout,
                                                         std::int32_t num_blocks) {
  if (layout.type != KvType::kF16 || layout.head_dim_k != layout.head_dim_v || num_blocks < 1) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} KV blocks of {} with heads of {} and {} elements: a device takes "
                    "f16 and heads of one size",
                    num_blocks, kv_type_name(layout.type), layout.head_dim_k, layout.head_dim_v));
  }
  std::unique_ptr<GgmlDeviceKv> kv(new GgmlDeviceKv(layout, num_blocks));
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  ggml_backend_dev_memory(device, &free_bytes, &total_bytes);
  ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(device);
  const std::size_t wanted = static_cast<std::size_t>(num_blocks) * layout.block_bytes();
  for (ggml_tensor* layer : kv->layers_) {
    const std::size_t bytes = ggml_backend_buft_get_alloc_size(type, layer);
    GgmlBuffer buffer(wanted > free_bytes ? nullptr : ggml_backend_buft_alloc_buffer(type, bytes));
    if (buffer == nullptr) {
      return fail(ErrorCode::kNeverFits,
                  fmt::format("{:.0f} MiB of KV memory ({} blocks of {:.2f} MiB) do not fit on {}, "
                              "which has {:.0f} of {:.0f} MiB free",
                              mebibytes(wanted), num_blocks, mebibytes(layout.block_bytes()),
                              ggml_backend_dev_name(device), mebibytes(free_bytes),
                              mebibytes(total_bytes)));
    }
    CHECK(ggml_backend_tensor_alloc(buffer.get(), layer,
                                    ggml_backend_buffer_get_base(buffer.get())) ==
          GGML_STATUS_SUCCESS);
    ggml_backend_buffer_clear(buffer.get(), 0);
    kv->buffers_.push_back(std::move(buffer));
  }
  return kv;
}

KvView GgmlDeviceKv::view() {
  return {.base = nullptr, .layout = layout_, .num_blocks = num_blocks_, .device = this};
}

std::int64_t GgmlDeviceKv::rows_per_block() const {
  return std::int64_t{2} * layout_.num_kv_heads * layout_.block_tokens;
}

std::size_t GgmlDeviceKv::offset_of(BlockId block) const {
  CHECK(block.value >= 0 && block.value < num_blocks_);
  return static_cast<std::size_t>(block.value) * layout_.layer_bytes();
}

void GgmlDeviceKv::read(BlockId block, std::span<std::byte> bytes) const {
  CHECK_EQ(bytes.size(), layout_.block_bytes());
  const std::size_t size = layout_.layer_bytes();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    ggml_backend_tensor_get(layers_[i], bytes.data() + i * size, offset_of(block), size);
  }
}

void GgmlDeviceKv::write(BlockId block, std::span<const std::byte> bytes) {
  CHECK_EQ(bytes.size(), layout_.block_bytes());
  const std::size_t size = layout_.layer_bytes();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    ggml_backend_tensor_set(layers_[i], bytes.data() + i * size, offset_of(block), size);
  }
}

void GgmlDeviceKv::copy(BlockId from, BlockId to) {
  const GgmlContext context(
      ggml_init({2 * layers_.size() * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  const auto part = [&](ggml_tensor* layer, BlockId block) {
    ggml_tensor* view = ggml_view_2d(context.get(), layer, layer->ne[0], rows_per_block(),
                                     layer->nb[1], offset_of(block));
    CHECK(ggml_backend_view_init(view) == GGML_STATUS_SUCCESS);
    return view;
  };
  for (ggml_tensor* layer : layers_) ggml_backend_tensor_copy(part(layer, from), part(layer, to));
}

}  // namespace sluice
