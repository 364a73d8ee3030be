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

#include <cstddef>
#include <cstdint>

#include "base/kv_layout.h"
#include "base/result.h"
#include "model/ggml/attention_plan.h"

namespace sluice {

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

// Whether shapes are supported: head dims are multiples of 8 (of 32 with q8_0) up
// to 1,024, block sizes powers of two, and query heads a multiple of KV heads.
[[nodiscard]] Status check_attention_shape(const KvLayout& layout, std::int32_t num_heads);

// The instruction set chosen for this processor, "AVX3" and the like; for logs.
[[nodiscard]] const char* attention_target();

// Writes the step's K and V rows of one layer into the blocks, in their type. All
// threads must have left before attend() of the layer starts: two ops.
void store_kv(const AttentionPlan& plan, std::int32_t layer, const HeadRows& k, const HeadRows& v,
              std::int32_t ith, std::int32_t nth);

// Attention of one layer: each of the nth threads calls it once, and the result
// is whole when all have returned. Only one attend() of a plan runs at a time.
void attend(AttentionPlan& plan, const AttentionLayer& layer, const HeadRows& q,
            const MutableHeadRows& out, std::int32_t ith, std::int32_t nth);

}  // namespace sluice
