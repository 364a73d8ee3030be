#include "model/ggml/stock_attention.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "base/check.h"

namespace sluice {
namespace {

constexpr std::int32_t kFewestPlaces = 16;

// Up to the next of four sizes between two powers of two.
std::int32_t roomy(std::int32_t blocks) {
  if (blocks <= kFewestPlaces) return kFewestPlaces;
  const auto unit =
      static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(blocks))) / 4;
  return (blocks + unit - 1) / unit * unit;
}

template <class T>
void upload(ggml_tensor* tensor, const std::vector<T>& values) {
  CHECK_EQ(ggml_nbytes(tensor), values.size() * sizeof(T));
  ggml_backend_tensor_set(tensor, values.data(), 0, ggml_nbytes(tensor));
}

bool is_used(const ggml_tensor* tensor) {
  return tensor != nullptr && tensor->buffer != nullptr;
}

}  // namespace

StockAttention::StockAttention(const ModelConfig& config) : config_(config) {}

void StockAttention::bind(const GgmlDeviceKv& kv, const KvView& view) {
  kv_ = &kv;
  layout_ = view.layout;
  num_blocks_ = view.num_blocks;
  place_of_.assign(static_cast<std::size_t>(num_blocks_), -1);
  gathered_.clear();
}

std::int32_t StockAttention::blocks_seen(const AttentionSequence& sequence) const {
  return layout_.blocks_for(sequence.position + sequence.num_rows);
}

std::int32_t StockAttention::plan(std::span<const AttentionSequence> sequences) {
  for (const BlockId block : gathered_) place_of_[static_cast<std::size_t>(block.value)] = -1;
  gathered_.clear();
  for (const AttentionSequence& sequence : sequences) {
    for (std::int32_t i = 0; i < blocks_seen(sequence); ++i) {
      std::int32_t& place = place_of_[static_cast<std::size_t>(sequence.blocks[i].value)];
      if (place >= 0) continue;
      place = static_cast<std::int32_t>(gathered_.size());
      gathered_.push_back(sequence.blocks[i]);
    }
  }
  return room_ = roomy(static_cast<std::int32_t>(gathered_.size()));
}

std::int32_t StockAttention::plan_all() {
  return room_ = roomy(num_blocks_);
}

void StockAttention::begin(ggml_context* context, GraphShape shape) {
  const auto input = [&](ggml_type type, std::int64_t a, std::int64_t b, const char* name) {
    ggml_tensor* tensor = ggml_new_tensor_2d(context, type, a, b);
    ggml_set_input(tensor);
    ggml_set_name(tensor, name);
    return tensor;
  };
  const std::int64_t heads = layout_.num_kv_heads;
  const std::int64_t tokens = std::int64_t{room_} * layout_.block_tokens;
  rows_ = input(GGML_TYPE_I64, heads * shape.num_tokens, 1, "kv_rows");
  tiles_ = input(GGML_TYPE_I32, heads * room_, 1, "kv_tiles");
  mask_ = input(GGML_TYPE_F16, tokens, shape.num_tokens, "kv_mask");
  window_mask_ = nullptr;
  if (config_.sliding_window > 0) {
    window_mask_ = input(GGML_TYPE_F16, tokens, shape.num_tokens, "kv_window_mask");
  }
}

// A row is one head's K or V of one token. V's rows of a block follow all of K's.
ggml_tensor* StockAttention::store(ggml_context* context, ggml_cgraph* graph, std::size_t layer,
                                   ggml_tensor* k, ggml_tensor* v) {
  ggml_tensor* all = kv_->layer(layer);
  const std::int64_t v_begin = std::int64_t{layout_.num_kv_heads} * layout_.block_tokens;
  const auto scatter = [&](ggml_tensor* values, std::int64_t first_row) {
    if (!ggml_is_contiguous(values)) values = ggml_cont(context, values);
    values = ggml_reshape_2d(context, values, values->ne[0], values->ne[1] * values->ne[2]);
    ggml_tensor* from = ggml_view_2d(context, all, all->ne[0], all->ne[1] - first_row, all->nb[1],
                                     static_cast<std::size_t>(first_row) * all->nb[1]);
    ggml_tensor* stored = ggml_set_rows(context, from, values, rows_);
    ggml_build_forward_expand(graph, stored);
    return stored;
  };
  scatter(k, 0);
  return scatter(v, v_begin);
}

// [dim, gathered token, head] of K, or of V: a tile is a head's rows in a block.
ggml_tensor* StockAttention::gather(ggml_context* context, std::size_t layer,
                                    std::int64_t first_tile) const {
  ggml_tensor* all = kv_->layer(layer);
  const std::int64_t width = all->ne[0] * layout_.block_tokens;
  const std::int64_t num_tiles = all->ne[1] / layout_.block_tokens - first_tile;
  const std::size_t bytes = layout_.k_tile_bytes();
  ggml_tensor* tiles = ggml_view_2d(context, all, width, num_tiles, bytes,
                                    static_cast<std::size_t>(first_tile) * bytes);
  ggml_tensor* gathered = ggml_get_rows(context, tiles, tiles_);
  return ggml_reshape_3d(context, gathered, all->ne[0], std::int64_t{room_} * layout_.block_tokens,
                         layout_.num_kv_heads);
}

// What was stored is read by its place in the graph: the gathered tensor is the same.
ggml_tensor* StockAttention::attend(ggml_context* context, std::size_t layer, ggml_tensor* q,
                                    ggml_tensor*) {
  const LayerConfig& settings = config_.layers[layer];
  ggml_tensor* k = gather(context, layer, 0);
  ggml_tensor* v = gather(context, layer, layout_.num_kv_heads);
  ggml_tensor* rows = ggml_permute(context, q, 0, 2, 1, 3);
  ggml_tensor* mask = settings.sliding_window > 0 ? window_mask_ : mask_;
  ggml_tensor* y =
      ggml_flash_attn_ext(context, rows, k, v, mask, config_.attention_scale, 0.0F, 0.0F);
  ggml_prec_set_acc(y, GGML_PREC_F32);
  return ggml_reshape_2d(context, y, y->ne[0] * y->ne[1], y->ne[2]);
}

void StockAttention::write(std::span<const AttentionSequence> sequences) {
  if (is_used(rows_)) write_rows(sequences);
  if (is_used(tiles_)) write_tiles();
  if (is_used(mask_)) write_mask(mask_, 0, sequences);
  if (is_used(window_mask_)) write_mask(window_mask_, config_.sliding_window, sequences);
}

void StockAttention::write_rows(std::span<const AttentionSequence> sequences) {
  row_values_.clear();
  const std::int64_t tokens = layout_.block_tokens;
  for (const AttentionSequence& sequence : sequences) {
    for (std::int32_t r = 0; r < sequence.num_rows; ++r) {
      const std::int32_t position = sequence.position + r;
      const BlockId block = sequence.blocks[position / layout_.block_tokens];
      const std::int64_t first = block.value * kv_->rows_per_block() + position % tokens;
      for (std::int64_t head = 0; head < layout_.num_kv_heads; ++head) {
        row_values_.push_back(first + head * tokens);
      }
    }
  }
  upload(rows_, row_values_);
}

// Places that are left over hold the first block once more, which nobody is let see there.
void StockAttention::write_tiles() {
  tile_values_.clear();
  for (std::int32_t head = 0; head < layout_.num_kv_heads; ++head) {
    for (std::int32_t place = 0; place < room_; ++place) {
      const auto i = static_cast<std::size_t>(place);
      const std::int32_t block = gathered_[i < gathered_.size() ? i : 0].value;
      tile_values_.push_back(block * 2 * layout_.num_kv_heads + head);
    }
  }
  upload(tiles_, tile_values_);
}

void StockAttention::write_mask(ggml_tensor* mask, std::int32_t window,
                                std::span<const AttentionSequence> sequences) {
  const auto width = static_cast<std::size_t>(mask->ne[0]);
  const auto tokens = static_cast<std::int32_t>(layout_.block_tokens);
  const ggml_fp16_t seen = ggml_fp32_to_fp16(0.0F);
  mask_values_.assign(width * static_cast<std::size_t>(mask->ne[1]), ggml_fp32_to_fp16(-INFINITY));
  for (const AttentionSequence& sequence : sequences) {
    for (std::int32_t r = 0; r < sequence.num_rows; ++r) {
      const std::int32_t end = sequence.position + r + 1;
      const std::int32_t begin = window > 0 ? std::max(0, end - window) : 0;
      auto* row = mask_values_.data() + static_cast<std::size_t>(sequence.row_begin + r) * width;
      for (std::int32_t at = begin; at < end;) {
        const std::int32_t next = std::min(end, (at / tokens + 1) * tokens);
        const BlockId block = sequence.blocks[at / tokens];
        const std::int32_t place = place_of_[static_cast<std::size_t>(block.value)];
        std::fill_n(row + place * tokens + at % tokens, next - at, seen);
        at = next;
      }
    }
  }
  upload(mask, mask_values_);
}

}  // namespace sluice
