#include "model/ggml/attention.h"

#include <algorithm>
#include <bit>
#include <climits>
#include <cmath>
#include <cstdlib>

#include "base/check.h"
#include "model/ggml/attention_kernels.h"

namespace sluice {
namespace {

using attention::kNoLogit;
using attention::kTileQueries;
using attention::padded;
using attention::Partial;

constexpr std::int32_t kMaxHeadDim = 1024;
// Tokens of a part are a multiple of this, and a sequence's row tiles have at
// most so many parts together: enough for the cores, small in scratch.
constexpr std::int32_t kPartTokens = 256;
constexpr std::int32_t kMaxParts = 32;
constexpr float kLog2E = 1.44269504F;
constexpr std::size_t kLine = 64;  // bytes; threads do not share lines of scratch

std::size_t whole_lines(std::size_t floats) {
  constexpr std::size_t kFloats = kLine / sizeof(float);
  return (floats + kFloats - 1) / kFloats * kFloats;
}

}  // namespace

Status check_attention_shape(const KvLayout& layout, std::int32_t num_heads) {
  for (const std::int32_t dim : {layout.head_dim_k, layout.head_dim_v}) {
    if (dim <= 0 || dim % 8 != 0 || dim > kMaxHeadDim) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("attention heads of {} elements are not supported: need a multiple "
                              "of 8 up to {}",
                              dim, kMaxHeadDim));
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

const char* attention_target() {
  return attention::target_name();
}

void AttentionPlan::Floats::reserve(std::size_t floats) {
  if (floats <= capacity) return;
  const std::size_t bytes = whole_lines(floats + floats / 4) * sizeof(float);
  data.reset(static_cast<float*>(std::aligned_alloc(kLine, bytes)));
  CHECK(data != nullptr);
  capacity = bytes / sizeof(float);
}

void AttentionPlan::build(const KvView& kv, std::int32_t num_heads, std::int32_t num_threads,
                          std::span<const AttentionSequence> sequences) {
  CHECK(check_attention_shape(kv.layout, num_heads).has_value());
  CHECK_GT(num_threads, 0);
  kv_ = kv;
  num_heads_ = num_heads;
  num_threads_ = num_threads;
  sequences_.assign(sequences.begin(), sequences.end());
  rows_.clear();
  groups_.clear();
  items_.clear();
  partial_floats_ = 0;
  // Many rows first: their units are the longest.
  const std::int32_t tile = std::max(1, kTileQueries / queries_per_kv_head());
  for (const bool many : {true, false}) {
    for (std::size_t s = 0; s < sequences_.size(); ++s) {
      CHECK_GT(sequences_[s].num_rows, 0);
      if ((sequences_[s].num_rows > tile) == many) cut(static_cast<std::int32_t>(s));
    }
  }
  reserve();
}

// Row tiles of nearly equal size, those with the longest context first.
void AttentionPlan::cut(std::int32_t sequence) {
  const std::int32_t rows = sequences_[static_cast<std::size_t>(sequence)].num_rows;
  const std::int32_t tile = std::max(1, kTileQueries / queries_per_kv_head());
  const std::int32_t tiles = (rows + tile - 1) / tile;
  for (std::int32_t i = tiles - 1; i >= 0; --i) {
    const auto cut_at = [&](std::int64_t t) { return static_cast<std::int32_t>(rows * t / tiles); };
    add_group(sequence, cut_at(i), cut_at(i + 1) - cut_at(i), std::max(1, kMaxParts / tiles));
  }
}

void AttentionPlan::add_group(std::int32_t sequence, std::int32_t first, std::int32_t count,
                              std::int32_t max_parts) {
  const AttentionSequence& from = sequences_[static_cast<std::size_t>(sequence)];
  const auto group = static_cast<std::int32_t>(groups_.size());
  const std::int32_t tokens = from.position + first + count;
  const std::int32_t units = (tokens + kPartTokens - 1) / kPartTokens;
  const std::int32_t part_tokens = (units + max_parts - 1) / max_parts * kPartTokens;
  const std::int32_t parts = (tokens + part_tokens - 1) / part_tokens;
  groups_.push_back({static_cast<std::int32_t>(rows_.size()), count, parts, partial_floats_});
  for (std::int32_t r = first; r < first + count; ++r) {
    rows_.push_back({from.row_begin + r, from.position + r, sequence});
  }
  for (std::int32_t p = 0; p < parts; ++p) {
    items_.push_back(
        {group, group + 1, p, sequence, p * part_tokens, std::min(tokens, (p + 1) * part_tokens)});
  }
  if (parts > 1) {
    const std::size_t one =
        whole_lines(Partial::floats(count * queries_per_kv_head(), kv_.layout.head_dim_v));
    partial_floats_ += one * static_cast<std::size_t>(parts * kv_.layout.num_kv_heads);
  }
}

void AttentionPlan::reserve() {
  std::int32_t queries = 1;
  for (const Item& item : items_) {
    std::int32_t rows = 0;
    for (std::int32_t g = item.group_begin; g < item.group_end; ++g) {
      rows += groups_[static_cast<std::size_t>(g)].num_rows;
    }
    queries = std::max(queries, rows * queries_per_kv_head());
  }
  const KvLayout& layout = kv_.layout;
  kernel_scratch_ = whole_lines(Partial::floats(queries, layout.head_dim_v));
  thread_scratch_floats_ = kernel_scratch_ + whole_lines(attention::part_scratch_floats(
                                                 queries, layout.head_dim_k, layout.head_dim_v));
  thread_scratch_.reserve(thread_scratch_floats_ * static_cast<std::size_t>(num_threads_));
  partials_.reserve(partial_floats_);

  const auto heads = static_cast<std::size_t>(layout.num_kv_heads);
  const std::size_t counters = groups_.size() * heads;
  if (counters > parts_left_capacity_) {
    parts_left_capacity_ = counters + counters / 4;
    parts_left_ = std::make_unique<std::atomic<std::int32_t>[]>(parts_left_capacity_);
  }
  for (std::size_t i = 0; i < counters; ++i) {
    parts_left_[i].store(groups_[i / heads].num_parts, std::memory_order_relaxed);
  }
  next_unit_.store(0, std::memory_order_relaxed);
  threads_done_.store(0, std::memory_order_relaxed);
}

// One thread's share of one attend().
class AttentionRun {
 public:
  AttentionRun(AttentionPlan& plan, const AttentionLayer& layer, const HeadRows& q,
               const MutableHeadRows& out, std::int32_t ith)
      : plan_(plan), layer_(layer), q_(q), out_(out) {
    group_size_ = plan.queries_per_kv_head();
    memory_ = plan.thread_scratch_.data.get() +
              plan.thread_scratch_floats_ * static_cast<std::size_t>(ith);
  }

  void run(std::int32_t nth) {
    const std::int32_t heads = plan_.kv_.layout.num_kv_heads;
    const auto units = static_cast<std::int32_t>(plan_.items_.size()) * heads;
    for (;;) {
      const std::int32_t unit = plan_.next_unit_.fetch_add(1, std::memory_order_relaxed);
      if (unit >= units) break;
      run_unit(plan_.items_[static_cast<std::size_t>(unit / heads)], unit % heads);
    }
    // The last to leave makes the plan ready for the next layer; the barrier
    // between two ops of the graph publishes it.
    if (plan_.threads_done_.fetch_add(1, std::memory_order_acq_rel) == nth - 1) {
      plan_.next_unit_.store(0, std::memory_order_relaxed);
      plan_.threads_done_.store(0, std::memory_order_relaxed);
    }
  }

 private:
  void run_unit(const AttentionPlan::Item& item, std::int32_t head) {
    const AttentionPlan::Group& group = plan_.groups_[static_cast<std::size_t>(item.group_begin)];
    const bool whole = group.num_parts == 1;
    const std::int32_t queries = group.num_rows * group_size_;
    const Partial partial =
        Partial::at(whole ? memory_ : part_memory(group, head, item.part), queries);
    compute(item, head, group, partial);
    if (whole) {
      finish(group, head, partial, 1, 0);
      return;
    }
    std::atomic<std::int32_t>& left = plan_.parts_left_[static_cast<std::size_t>(
        item.group_begin * plan_.kv_.layout.num_kv_heads + head)];
    if (left.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      left.store(group.num_parts, std::memory_order_relaxed);
      finish(group, head, Partial::at(part_memory(group, head, 0), queries), group.num_parts,
             part_floats(group));
    }
  }

  [[nodiscard]] std::size_t part_floats(const AttentionPlan::Group& group) const {
    return whole_lines(Partial::floats(group.num_rows * group_size_, plan_.kv_.layout.head_dim_v));
  }

  [[nodiscard]] float* part_memory(const AttentionPlan::Group& group, std::int32_t head,
                                   std::int32_t part) const {
    return plan_.partials_.data.get() + group.scratch +
           part_floats(group) * static_cast<std::size_t>(head * group.num_parts + part);
  }

  void compute(const AttentionPlan::Item& item, std::int32_t head,
               const AttentionPlan::Group& group, const Partial& partial) const {
    const KvLayout& layout = plan_.kv_.layout;
    const bool capped = layer_.logit_softcap != 0.0F;
    attention::PartArgs args;
    args.q = q_;
    args.q.data += static_cast<std::ptrdiff_t>(head * group_size_) * q_.head_stride;
    args.rows = std::span(plan_.rows_)
                    .subspan(static_cast<std::size_t>(group.first_row),
                             static_cast<std::size_t>(group.num_rows));
    args.group = group_size_;
    args.dim_k = layout.head_dim_k;
    args.dim_v = layout.head_dim_v;
    args.k = plan_.kv_.base + layout.k_offset(layer_.layer, head);
    args.v = plan_.kv_.base + layout.v_offset(layer_.layer, head);
    args.block_bytes = layout.block_bytes();
    args.block_shift = std::countr_zero(static_cast<std::uint32_t>(layout.block_tokens));
    args.blocks = plan_.sequences_[static_cast<std::size_t>(item.sequence)].blocks;
    args.window = layer_.sliding_window > 0 ? layer_.sliding_window : INT_MAX / 2;
    args.q_scale = capped ? layer_.scale / layer_.logit_softcap : layer_.scale * kLog2E;
    args.softcap = capped ? layer_.logit_softcap * kLog2E : 0.0F;
    args.token_begin = std::max(item.token_begin, args.rows.front().position - args.window + 1);
    args.token_end = std::min(item.token_end, args.rows.back().position + 1);
    attend_part(args, partial, memory_ + plan_.kernel_scratch_);
  }

  void finish(const AttentionPlan::Group& group, std::int32_t head, const Partial& first,
              std::int32_t parts, std::size_t stride) const {
    const std::int32_t dim_v = plan_.kv_.layout.head_dim_v;
    for (std::int32_t r = 0; r < group.num_rows; ++r) {
      const std::int32_t row = plan_.rows_[static_cast<std::size_t>(group.first_row + r)].row;
      for (std::int32_t h = 0; h < group_size_; ++h) {
        const std::int32_t j = r * group_size_ + h;
        const std::int32_t query_head = head * group_size_ + h;
        const float sink = layer_.sinks == nullptr ? kNoLogit : layer_.sinks[query_head] * kLog2E;
        attention::merge_parts(first.m + j, first.l + j,
                               first.acc + static_cast<std::ptrdiff_t>(j) * padded(dim_v), parts,
                               stride, sink, dim_v,
                               out_.data + row * out_.row_stride + query_head * out_.head_stride);
      }
    }
  }

  AttentionPlan& plan_;
  const AttentionLayer& layer_;
  const HeadRows& q_;
  const MutableHeadRows& out_;
  std::int32_t group_size_ = 1;
  float* memory_ = nullptr;
};

void store_kv(const AttentionPlan& plan, std::int32_t layer, const HeadRows& k, const HeadRows& v,
              std::int32_t ith, std::int32_t nth) {
  const KvView& kv = plan.kv();
  const KvLayout& layout = kv.layout;
  const std::span<const AttentionRow> rows = plan.rows();
  const std::size_t begin =
      rows.size() * static_cast<std::size_t>(ith) / static_cast<std::size_t>(nth);
  const std::size_t end =
      rows.size() * static_cast<std::size_t>(ith + 1) / static_cast<std::size_t>(nth);
  for (const AttentionRow& row : rows.subspan(begin, end - begin)) {
    const AttentionSequence& sequence = plan.sequences()[static_cast<std::size_t>(row.sequence)];
    const BlockId id = sequence.blocks[row.position / layout.block_tokens];
    DCHECK(id.value >= 0 && id.value < kv.num_blocks);
    std::byte* block = kv.base + static_cast<std::size_t>(id.value) * layout.block_bytes();
    const auto offset = static_cast<std::size_t>(row.position % layout.block_tokens);
    for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
      attention::store_f16(k.data + row.row * k.row_stride + head * k.head_stride,
                           layout.head_dim_k,
                           block + layout.k_offset(layer, head) + offset * layout.k_row_bytes());
      attention::store_f16(v.data + row.row * v.row_stride + head * v.head_stride,
                           layout.head_dim_v,
                           block + layout.v_offset(layer, head) + offset * layout.v_row_bytes());
    }
  }
}

void attend(AttentionPlan& plan, const AttentionLayer& layer, const HeadRows& q,
            const MutableHeadRows& out, std::int32_t ith, std::int32_t nth) {
  AttentionRun(plan, layer, q, out, ith).run(nth);
}

}  // namespace sluice
