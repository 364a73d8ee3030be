#include "model/ggml/attention.h"

#include <algorithm>
#include <climits>

#include "base/check.h"
#include "model/ggml/attention_kernels.h"

namespace sluice {
namespace {

using attention::kNoLogit;
using attention::kTileQueries;
using attention::padded;
using attention::Partial;

constexpr float kLog2E = 1.44269504F;

}  // namespace

const char* attention_target() {
  return attention::target_name();
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
    const AttentionPlan::Group& first = group(item.group_begin);
    const bool one = item.group_begin + 1 == item.group_end;
    std::int32_t rows = 0;
    for (std::int32_t g = item.group_begin; g < item.group_end; ++g) rows += group(g).num_rows;
    const std::int32_t queries = rows * group_size_;
    const bool whole = first.num_parts == 1;
    const Partial result =
        Partial::at(one && !whole ? part_memory(first, head, item.part) : memory_, queries);
    compute(item, head, rows, result);
    if (whole) {
      finish(first, head, result, 1, 0);
      return;
    }
    if (!one) hand_out(item, head, result);
    for (std::int32_t g = item.group_begin; g < item.group_end; ++g) part_done(g, head);
  }

  [[nodiscard]] const AttentionPlan::Group& group(std::int32_t g) const {
    return plan_.groups_[static_cast<std::size_t>(g)];
  }

  // Copies what was computed for several groups into the part of each.
  void hand_out(const AttentionPlan::Item& item, std::int32_t head, const Partial& result) const {
    const std::ptrdiff_t width = padded(plan_.kv_.layout.head_dim_v);
    std::int32_t j = 0;
    for (std::int32_t g = item.group_begin; g < item.group_end; ++g) {
      const std::int32_t queries = group(g).num_rows * group_size_;
      const Partial own = Partial::at(part_memory(group(g), head, item.part), queries);
      std::copy_n(result.m + j, queries, own.m);
      std::copy_n(result.l + j, queries, own.l);
      std::copy_n(result.acc + j * width, queries * width, own.acc);
      j += queries;
    }
  }

  // Whoever completes a group's last part merges them.
  void part_done(std::int32_t g, std::int32_t head) {
    const AttentionPlan::Group& done = group(g);
    std::atomic<std::int32_t>& left =
        plan_.parts_left_[static_cast<std::size_t>(g * plan_.kv_.layout.num_kv_heads + head)];
    if (left.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    left.store(done.num_parts, std::memory_order_relaxed);
    finish(done, head, Partial::at(part_memory(done, head, 0), done.num_rows * group_size_),
           done.num_parts, part_floats(done));
  }

  [[nodiscard]] std::size_t part_floats(const AttentionPlan::Group& group) const {
    return attention::whole_lines(
        Partial::floats(group.num_rows * group_size_, plan_.kv_.layout.head_dim_v));
  }

  [[nodiscard]] float* part_memory(const AttentionPlan::Group& group, std::int32_t head,
                                   std::int32_t part) const {
    return plan_.partials_.data.get() + group.scratch +
           part_floats(group) * static_cast<std::size_t>(head * group.num_parts + part);
  }

  void compute(const AttentionPlan::Item& item, std::int32_t head, std::int32_t rows,
               const Partial& result) const {
    const AttentionPlan::Group& first = group(item.group_begin);
    const KvLayout& layout = plan_.kv_.layout;
    const bool capped = layer_.logit_softcap != 0.0F;
    attention::PartArgs args;
    args.q = q_;
    args.q.data += static_cast<std::ptrdiff_t>(head * group_size_) * q_.head_stride;
    args.rows =
        std::span(plan_.rows_)
            .subspan(static_cast<std::size_t>(first.first_row), static_cast<std::size_t>(rows));
    args.dots = first.few;
    args.group = group_size_;
    args.type = layout.type;
    args.dim_k = layout.head_dim_k;
    args.dim_v = layout.head_dim_v;
    args.k = plan_.kv_.base + layout.k_offset(layer_.layer, head);
    args.v = plan_.kv_.base + layout.v_offset(layer_.layer, head);
    args.block_bytes = layout.block_bytes();
    args.block_shift = std::countr_zero(static_cast<std::uint32_t>(layout.block_tokens));
    args.blocks = plan_.sequences_[static_cast<std::size_t>(first.sequence)].blocks;
    args.window = layer_.sliding_window > 0 ? layer_.sliding_window : INT_MAX / 2;
    args.q_scale = capped ? layer_.scale / layer_.logit_softcap : layer_.scale * kLog2E;
    args.softcap = capped ? layer_.logit_softcap * kLog2E : 0.0F;
    const auto [low, high] = std::minmax_element(
        args.rows.begin(), args.rows.end(),
        [](const AttentionRow& a, const AttentionRow& b) { return a.position < b.position; });
    args.token_begin = std::max(item.token_begin, low->position - args.window + 1);
    args.token_end = std::min(item.token_end, high->position + 1);
    attend_part(args, result, memory_ + plan_.kernel_scratch_);
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
      attention::store_row(layout.type, k.data + row.row * k.row_stride + head * k.head_stride,
                           layout.head_dim_k,
                           block + layout.k_offset(layer, head) + offset * layout.k_row_bytes());
      attention::store_row(layout.type, v.data + row.row * v.row_stride + head * v.head_stride,
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
