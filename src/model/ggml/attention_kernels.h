// The arithmetic of attention for one unit of work, chosen at run time for the
// processor's instruction set. attention.cpp cuts a step into such units.
//
// A query vector is one query head of one row; those of a KV head's group and of
// several rows are computed together, so that a K or V row is read from memory
// once for all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "model/ggml/attention.h"

namespace sluice::attention {

// Row tiles of up to so many query vectors use dot products on K as it lies;
// with more K is transposed and both products are small matrix products.
inline constexpr std::int32_t kMaxDotQueries = 24;
// Query vectors that a row tile aims at, and tokens that it takes at a time.
inline constexpr std::int32_t kTileQueries = 96;
inline constexpr std::int32_t kTileTokens = 64;
// Tokens between two looks at the running maximum with dot products.
inline constexpr std::int32_t kChunkTokens = 256;
// Rows of scratch are padded to this many floats.
inline constexpr std::int32_t kPadFloats = 16;

constexpr std::int32_t padded(std::int32_t floats) {
  return (floats + kPadFloats - 1) / kPadFloats * kPadFloats;
}

inline constexpr std::size_t kLineBytes = 64;  // threads do not share lines of scratch
constexpr std::size_t whole_lines(std::size_t floats) {
  constexpr std::size_t kFloats = kLineBytes / sizeof(float);
  return (floats + kFloats - 1) / kFloats * kFloats;
}

// The softmax state of some query vectors over a part of their tokens, logits in
// units of ln 2: m is the largest, l the sum of 2^(logit - m), and acc the sum
// of 2^(logit - m) * v. No token seen: m = kNoLogit, l = 0, acc = 0.
inline constexpr float kNoLogit = -1e30F;
struct Partial {
  float* m = nullptr;    // [query vector]
  float* l = nullptr;    // [query vector]
  float* acc = nullptr;  // [query vector][padded(dim_v)]

  static constexpr std::size_t floats(std::int32_t queries, std::int32_t dim_v) {
    return static_cast<std::size_t>(2 * padded(queries)) +
           static_cast<std::size_t>(queries) * static_cast<std::size_t>(padded(dim_v));
  }
  static Partial at(float* memory, std::int32_t queries) {
    const auto n = static_cast<std::ptrdiff_t>(padded(queries));
    return {memory, memory + n, memory + 2 * n};
  }
};

struct PartArgs {
  bool dots = true;  // how; the two ways round differently
  HeadRows q;        // starts at the group's first head
  std::span<const AttentionRow> rows;
  std::int32_t group = 1;  // query heads that share the KV head
  KvType type = KvType::kF16;
  std::int32_t dim_k = 0;
  std::int32_t dim_v = 0;
  const std::byte* k = nullptr;  // the head's tile of block b: k + b * block_bytes
  const std::byte* v = nullptr;
  std::size_t block_bytes = 0;
  std::int32_t block_shift = 0;  // log2 of the tokens of a block
  const BlockId* blocks = nullptr;
  std::int32_t token_begin = 0;
  std::int32_t token_end = 0;
  std::int32_t window = 0;  // > 0
  float q_scale = 1.0F;     // takes q . k to units of ln 2, or to tanh's argument
  float softcap = 0.0F;     // in units of ln 2; 0: off

  [[nodiscard]] std::int32_t queries() const {
    return static_cast<std::int32_t>(rows.size()) * group;
  }
};

// Floats of scratch that attend_part() needs for up to `queries` query vectors.
std::size_t part_scratch_floats(std::int32_t queries, std::int32_t dim_k, std::int32_t dim_v);

// Attention of the part's rows over its tokens, as far as each may see them.
void attend_part(const PartArgs& args, const Partial& result, float* scratch);

// out = the weighted mean of `parts` partials of one query vector, taken in
// order; `stride` floats lie between two parts of the same quantity. `sink` is
// one more logit in units of ln 2, with no value; kNoLogit: none.
void merge_parts(const float* m, const float* l, const float* acc, std::int32_t parts,
                 std::size_t stride, float sink, std::int32_t dim_v, float* out);

// Writes a row of f32 in the KV's type: f16, nearest (truncated where the
// processor has no such instruction), clamped to the largest finite number; or
// q8_0, each group scaled so that its largest element becomes 127.
void store_row(KvType type, const float* from, std::int32_t count, std::byte* to);

// The name of the instruction set in use.
const char* target_name();

}  // namespace sluice::attention
