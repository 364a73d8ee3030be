// How a step's attention is cut into units of work.
//
// A unit is (row tile, part of the tokens, KV head). Cuts depend on a sequence's
// own rows and length only; leading blocks that several sequences share become
// units of their own, read once for all of them.
//
// A plan belongs to one runner: build() by its loop, once a step; attend() of
// attention.h by its compute threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/kv_layout.h"

namespace sluice {

// The rows that one sequence has in a step.
struct AttentionSequence {
  const BlockId* blocks = nullptr;  // cover position + num_rows tokens; live as long as the plan
  std::int32_t num_rows = 0;        // new tokens in this step
  std::int32_t row_begin = 0;       // the first one's row in the batch's q, k, v and out
  std::int32_t position = 0;        // tokens before the first row
};

struct AttentionRow {
  std::int32_t row = 0;       // in the batch
  std::int32_t position = 0;  // of its token
  std::int32_t sequence = 0;
};

// How a step's attention is cut. Made once a step, used for all layers.
class AttentionPlan {
 public:
  // Some rows of one sequence, whose results are merged from `num_parts` parts.
  struct Group {
    std::int32_t sequence = 0;
    std::int32_t first_row = 0;  // index into rows()
    std::int32_t num_rows = 0;
    std::int32_t num_tokens = 0;   // that its last row sees
    std::int32_t part_tokens = 0;  // of each part but the last
    std::int32_t num_parts = 0;
    std::size_t scratch = 0;  // where its partial results start, in floats
    bool few = true;          // computed by dot products
  };
  // The rows of some groups over one range of tokens; with one KV head it is
  // the unit of work. Several groups: all have the same blocks there.
  struct Item {
    std::int32_t group_begin = 0;
    std::int32_t group_end = 0;
    std::int32_t part = 0;  // of each group
    std::int32_t token_begin = 0;
    std::int32_t token_end = 0;  // causal limits and windows cut further
  };

  AttentionPlan() = default;
  AttentionPlan(const AttentionPlan&) = delete;
  AttentionPlan& operator=(const AttentionPlan&) = delete;

  // Rows of different sequences must not overlap; rows of `q` that belong to no
  // sequence are left alone. `num_threads` is the most that nth will be.
  // Allocates only when the step is larger than any before.
  void build(const KvView& kv, std::int32_t num_heads, std::int32_t num_threads,
             std::span<const AttentionSequence> sequences);

  [[nodiscard]] const KvView& kv() const { return kv_; }
  [[nodiscard]] std::int32_t num_heads() const { return num_heads_; }
  [[nodiscard]] std::int32_t queries_per_kv_head() const {
    return num_heads_ / kv_.layout.num_kv_heads;
  }
  [[nodiscard]] std::span<const AttentionSequence> sequences() const { return sequences_; }
  [[nodiscard]] std::span<const AttentionRow> rows() const { return rows_; }
  [[nodiscard]] std::span<const Group> groups() const { return groups_; }
  [[nodiscard]] std::span<const Item> items() const { return items_; }

 private:
  friend class AttentionRun;

  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  struct Floats {
    std::unique_ptr<float[], Free> data;
    std::size_t capacity = 0;
    void reserve(std::size_t floats);  // keeps nothing
  };

  void cut(std::int32_t sequence);
  void add_group(std::int32_t sequence, std::int32_t first, std::int32_t count,
                 std::int32_t max_parts);
  void add_item(std::int32_t begin, std::int32_t end, std::int32_t part, std::vector<Item>& items);
  void share(std::int32_t begin, std::int32_t end, std::int32_t part);
  void add_shared(std::int32_t begin, std::int32_t end, std::int32_t part);
  [[nodiscard]] bool before(std::int32_t a, std::int32_t b) const;
  [[nodiscard]] bool same_part(const Group& a, const Group& b, std::int32_t part) const;
  void reserve();

  KvView kv_;
  std::int32_t num_heads_ = 0;
  std::int32_t num_threads_ = 0;
  std::vector<AttentionSequence> sequences_;
  std::vector<AttentionRow> rows_;
  std::vector<Group> groups_;
  std::vector<Item> items_;
  std::vector<Item> own_items_;  // while building: to be done after shared ones
  std::vector<std::int32_t> order_;
  Floats partials_;  // [group][kv head][part]
  std::size_t partial_floats_ = 0;
  Floats thread_scratch_;
  std::size_t thread_scratch_floats_ = 0;  // of each thread: a partial result,
  std::size_t kernel_scratch_ = 0;         // and from here on the kernel's scratch
  std::unique_ptr<std::atomic<std::int32_t>[]> parts_left_;  // [group][kv head]; full between runs
  std::size_t parts_left_capacity_ = 0;
  std::atomic<std::int32_t> next_unit_{0};  // 0 between runs, as is this:
  std::atomic<std::int32_t> threads_done_{0};
};

}  // namespace sluice
