#include "model/ggml/attention_plan.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "model/ggml/attention_kernels.h"

namespace sluice {
namespace {

// Tokens of a part are a multiple of this, and a sequence's row tiles have at
// most so many parts together: enough for the cores, small in scratch.
constexpr std::int32_t kPartTokens = 256;
constexpr std::int32_t kMaxParts = 32;

std::int32_t part_tokens(std::int32_t tokens, std::int32_t max_parts) {
  const std::int32_t units = (tokens + kPartTokens - 1) / kPartTokens;
  return (units + max_parts - 1) / max_parts * kPartTokens;
}

// Rows of a tile, with so many query vectors a row.
std::int32_t tile_rows(std::int32_t queries) {
  return std::max(1, attention::kTileQueries / queries);
}

}  // namespace

void AttentionPlan::Floats::reserve(std::size_t floats) {
  if (floats <= capacity) return;
  const std::size_t bytes = attention::whole_lines(floats + floats / 4) * sizeof(float);
  data.reset(static_cast<float*>(std::aligned_alloc(attention::kLineBytes, bytes)));
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
  own_items_.clear();
  order_.clear();
  partial_floats_ = 0;
  // Many rows first: their units are the longest.
  for (std::size_t s = 0; s < sequences_.size(); ++s) {
    CHECK_GT(sequences_[s].num_rows, 0);
    if (sequences_[s].num_rows * queries_per_kv_head() > attention::kMaxDotQueries) {
      cut(static_cast<std::int32_t>(s));
    } else {
      order_.push_back(static_cast<std::int32_t>(s));
    }
  }
  std::sort(order_.begin(), order_.end(),
            [&](std::int32_t a, std::int32_t b) { return before(a, b); });
  const auto few_begin = static_cast<std::int32_t>(groups_.size());
  for (const std::int32_t s : order_) {
    add_group(s, 0, sequences_[static_cast<std::size_t>(s)].num_rows, kMaxParts);
  }
  share(few_begin, static_cast<std::int32_t>(groups_.size()), 0);
  items_.insert(items_.end(), own_items_.begin(), own_items_.end());
  reserve();
}

// Row tiles of nearly equal size, those with the longest context first.
void AttentionPlan::cut(std::int32_t sequence) {
  const std::int32_t rows = sequences_[static_cast<std::size_t>(sequence)].num_rows;
  const std::int32_t tile = tile_rows(queries_per_kv_head());
  const std::int32_t tiles = (rows + tile - 1) / tile;
  for (std::int32_t i = tiles - 1; i >= 0; --i) {
    const auto cut_at = [&](std::int64_t t) { return static_cast<std::int32_t>(rows * t / tiles); };
    add_group(sequence, cut_at(i), cut_at(i + 1) - cut_at(i), std::max(1, kMaxParts / tiles));
    const auto group = static_cast<std::int32_t>(groups_.size()) - 1;
    groups_.back().few = false;
    for (std::int32_t p = 0; p < groups_.back().num_parts; ++p) {
      add_item(group, group + 1, p, items_);
    }
  }
}

void AttentionPlan::add_group(std::int32_t sequence, std::int32_t first, std::int32_t count,
                              std::int32_t max_parts) {
  const AttentionSequence& from = sequences_[static_cast<std::size_t>(sequence)];
  Group group;
  group.sequence = sequence;
  group.first_row = static_cast<std::int32_t>(rows_.size());
  group.num_rows = count;
  group.num_tokens = from.position + first + count;
  group.part_tokens = part_tokens(group.num_tokens, max_parts);
  group.num_parts = (group.num_tokens + group.part_tokens - 1) / group.part_tokens;
  group.scratch = partial_floats_;
  if (group.num_parts > 1) {
    const std::size_t one = attention::whole_lines(
        attention::Partial::floats(count * queries_per_kv_head(), kv_.layout.head_dim_v));
    partial_floats_ += one * static_cast<std::size_t>(group.num_parts * kv_.layout.num_kv_heads);
  }
  groups_.push_back(group);
  for (std::int32_t r = first; r < first + count; ++r) {
    rows_.push_back({from.row_begin + r, from.position + r, sequence});
  }
}

void AttentionPlan::add_item(std::int32_t begin, std::int32_t end, std::int32_t part,
                             std::vector<Item>& items) {
  const Group& group = groups_[static_cast<std::size_t>(begin)];
  items.push_back({begin, end, part, part * group.part_tokens,
                   std::min(group.num_tokens, (part + 1) * group.part_tokens)});
}

// An order in which sequences with the same leading blocks are neighbours.
bool AttentionPlan::before(std::int32_t a, std::int32_t b) const {
  const AttentionSequence& x = sequences_[static_cast<std::size_t>(a)];
  const AttentionSequence& y = sequences_[static_cast<std::size_t>(b)];
  const std::int32_t x_part = part_tokens(x.position + x.num_rows, kMaxParts);
  const std::int32_t y_part = part_tokens(y.position + y.num_rows, kMaxParts);
  if (x_part != y_part) return x_part < y_part;
  const std::int32_t tokens = kv_.layout.block_tokens;
  const auto order = std::lexicographical_compare_three_way(
      x.blocks, x.blocks + x.position / tokens, y.blocks, y.blocks + y.position / tokens);
  return order != 0 ? order < 0 : a < b;
}

// Whether a part lies before the rows of both groups, in the same blocks.
bool AttentionPlan::same_part(const Group& a, const Group& b, std::int32_t part) const {
  const std::int32_t end = (part + 1) * a.part_tokens;
  const AttentionSequence& x = sequences_[static_cast<std::size_t>(a.sequence)];
  const AttentionSequence& y = sequences_[static_cast<std::size_t>(b.sequence)];
  if (a.part_tokens != b.part_tokens || x.position < end || y.position < end) return false;
  const std::int32_t first = part * a.part_tokens / kv_.layout.block_tokens;
  const std::int32_t last = (end - 1) / kv_.layout.block_tokens;
  return std::equal(x.blocks + first, x.blocks + last + 1, y.blocks + first);
}

// Makes items of the groups [begin, end), which have the same blocks before
// `part`: one item for all that have the same blocks in it, and so on.
void AttentionPlan::share(std::int32_t begin, std::int32_t end, std::int32_t part) {
  for (std::int32_t i = begin; i < end;) {
    const Group& group = groups_[static_cast<std::size_t>(i)];
    std::int32_t next = i + 1;
    while (next < end && same_part(group, groups_[static_cast<std::size_t>(next)], part)) ++next;
    if (next - i > 1) {
      add_shared(i, next, part);
      share(i, next, part + 1);
    } else {
      for (std::int32_t p = part; p < group.num_parts; ++p) add_item(i, next, p, own_items_);
    }
    i = next;
  }
}

// As few items as hold the rows of [begin, end) with at most a tile in each.
void AttentionPlan::add_shared(std::int32_t begin, std::int32_t end, std::int32_t part) {
  const std::int32_t most = tile_rows(queries_per_kv_head());
  for (std::int32_t i = begin; i < end;) {
    std::int32_t rows = 0;
    std::int32_t next = i;
    while (next < end) {
      rows += groups_[static_cast<std::size_t>(next)].num_rows;
      if (rows > most && next > i) break;
      ++next;
    }
    add_item(i, next, part, items_);
    i = next;
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
  kernel_scratch_ = attention::whole_lines(attention::Partial::floats(queries, layout.head_dim_v));
  thread_scratch_floats_ = kernel_scratch_ + attention::whole_lines(attention::part_scratch_floats(
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

}  // namespace sluice
