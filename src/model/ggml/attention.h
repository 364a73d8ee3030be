// Attention on CPU over KV blocks, for a whole mixed batch of prefill and
// decode rows. Knows nothing of ggml: it works on raw pointers and is called
// from one custom op a layer, by all threads of that op at once.
//
// Work is cut into (row tile, segment of tokens, KV head). Cuts depend on a
// sequence's own rows and length only, and partial results are merged in the
// order of tokens, so that a row's result does not depend on what else is in
// the batch, on the number of threads, or on which thread did what.
//
// A plan belongs to one runner. build() by the runner's loop; store_kv() and
// attend() by its compute threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
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

// How a step's attention is cut. Made once a step, used for all layers.
class AttentionPlan {
 public:
  // Some rows of one sequence over one range of tokens; the unit of work is an
  // item for one KV head.
  struct Item {
    std::int32_t sequence = 0;
    std::int32_t row = 0;  // first row, counted in the sequence
    std::int32_t num_rows = 0;
    std::int32_t token_begin = 0;
    std::int32_t token_end = 0;  // causal limits cut further
    std::int32_t group = -1;     // whose parts are merged; -1: the item is the whole range
    std::int32_t part = 0;
  };
  // A row tile whose tokens are cut into parts.
  struct Group {
    std::int32_t first_item = 0;
    std::int32_t num_parts = 0;
    std::size_t scratch = 0;  // offset in floats of [kv head][part][query row]{m, l, sum...}
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
  [[nodiscard]] std::span<const AttentionSequence> sequences() const { return sequences_; }
  [[nodiscard]] std::span<const Item> items() const { return items_; }
  [[nodiscard]] std::span<const Group> groups() const { return groups_; }

 private:
  friend class AttentionRun;

  void cut(std::int32_t sequence);

  KvView kv_;
  std::int32_t num_heads_ = 0;
  std::int32_t num_threads_ = 0;
  std::vector<AttentionSequence> sequences_;
  std::vector<Item> items_;
  std::vector<Group> groups_;
  std::vector<float> scratch_;  // partial results of groups
  std::vector<float> thread_scratch_;
  std::size_t thread_scratch_floats_ = 0;
  std::vector<std::atomic<std::int32_t>> parts_left_;  // [group][kv head]; full between runs
  std::atomic<std::int32_t> next_unit_{0};             // both 0 between runs
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
