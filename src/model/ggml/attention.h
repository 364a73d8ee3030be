// Attention on CPU over KV blocks, for a whole mixed batch of prefill and
// decode rows. Knows nothing of ggml: it works on raw pointers and is called
// from one custom op a layer, by all threads of that op at once.
//
// Work is cut into (row tile, part of the tokens, KV head). Cuts depend on a
// sequence's own rows and length only, and partial results are merged in the
// order of tokens: a row's result is the same to the bit whatever else is in the
// batch, however many threads there are, and whichever did what. That holds too
// where sequences share leading blocks, which are read once for all of them.
//
// A plan belongs to one runner. build() by the runner's loop; store_kv() and
// attend() by its compute threads.
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
#include "base/result.h"

namespace sluice {

// The rows that one sequence has in a step.
struct AttentionSequence {
  const BlockId* blocks = nullptr;  // cover position + num_rows tokens; live as long as the plan
  std::int32_t num_rows = 0;        // new tokens in this step
  std::int32_t row_begin = 0;       // the first one's row in the batch's q, k, v and out
  std::int32_t position = 0;        // tokens before the first row
};

struct AttentionLayer {
  std::int32_t layer = 0;           // index into the KV layout
  float scale = 1.0F;               // of q . k
  float logit_softcap = 0.0F;       // c: logits become c * tanh(logit / c); 0: off
  std::int32_t sliding_window = 0;  // the row at p sees tokens (p - window, p]; 0: all up to p
  const float* sinks = nullptr;     // a logit for each query head that takes weight only; or none
};

// f32 rows [row][head][dim]; strides in floats, dim has stride 1.
struct HeadRows {
  const float* data = nullptr;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t head_stride = 0;
};
struct MutableHeadRows {
  float* data = nullptr;
  std::ptrdiff_t row_stride = 0;
  std::ptrdiff_t head_stride = 0;
};

// Whether shapes are supported: head dims are multiples of 8 up to 1,024, block
// sizes powers of two, and query heads a multiple of KV heads.
[[nodiscard]] Status check_attention_shape(const KvLayout& layout, std::int32_t num_heads);

// The instruction set chosen for this processor, "AVX3" and the like; for logs.
[[nodiscard]] const char* attention_target();

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

// Writes the step's K and V rows of one layer into the blocks, as f16. All
// threads must have left before attend() of the layer starts: two ops.
void store_kv(const AttentionPlan& plan, std::int32_t layer, const HeadRows& k, const HeadRows& v,
              std::int32_t ith, std::int32_t nth);

// Attention of one layer: each of the nth threads calls it once, and the result
// is whole when all have returned. Only one attend() of a plan runs at a time.
void attend(AttentionPlan& plan, const AttentionLayer& layer, const HeadRows& q,
            const MutableHeadRows& out, std::int32_t ith, std::int32_t nth);

}  // namespace sluice
