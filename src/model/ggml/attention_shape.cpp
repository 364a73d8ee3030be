// What attention takes: apart from the kernels, since reading a model file asks too.
#include <fmt/format.h>

#include <bit>

#include "model/ggml/attention.h"

namespace sluice {
namespace {

constexpr std::int32_t kMaxHeadDim = 1024;

}  // namespace

Status check_attention_shape(const KvLayout& layout, std::int32_t num_heads) {
  const std::int32_t unit = layout.type == KvType::kQ8_0 ? kKvGroup : 8;
  for (const std::int32_t dim : {layout.head_dim_k, layout.head_dim_v}) {
    if (dim <= 0 || dim % unit != 0 || dim > kMaxHeadDim) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("attention heads of {} elements are not supported with a KV cache of "
                              "{}: need a multiple of {} up to {}",
                              dim, kv_type_name(layout.type), unit, kMaxHeadDim));
    }
  }
  if (layout.num_kv_heads <= 0 || num_heads <= 0 || num_heads % layout.num_kv_heads != 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} attention heads are not a multiple of {} KV heads", num_heads,
                            layout.num_kv_heads));
  }
  if (layout.block_tokens <= 0 ||
      !std::has_single_bit(static_cast<std::uint32_t>(layout.block_tokens))) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("KV blocks of {} tokens: not a power of two", layout.block_tokens));
  }
  return {};
}

}  // namespace sluice
