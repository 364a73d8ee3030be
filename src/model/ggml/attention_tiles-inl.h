// Attention of many query vectors (prefill, and decode rows that share their
// tokens): a tile of K is widened and transposed once, a tile of V widened once,
// and both products are small matrix products with all query vectors.
#if defined(SLUICE_MODEL_GGML_ATTENTION_TILES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_MODEL_GGML_ATTENTION_TILES_INL_H_
#undef SLUICE_MODEL_GGML_ATTENTION_TILES_INL_H_
#else
#define SLUICE_MODEL_GGML_ATTENTION_TILES_INL_H_
#endif

#include <hwy/highway.h>

#include "model/ggml/attention_dots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::attention::HWY_NAMESPACE {

// Rows and columns (in vectors) of a product that are held in registers at once.
inline constexpr std::int32_t kProductRows = 6;
inline constexpr std::int32_t kProductColumns = kManyRegisters ? 4 : 2;

// c = a b, or with factors c[r] = factors[r] * c[r] + a[r] b. `a` is
// [row][depth], `b` [depth][column], `c` [row][column].
struct Product {
  const float* a;
  std::ptrdiff_t a_stride;
  const float* b;
  std::ptrdiff_t b_stride;
  float* c;
  std::ptrdiff_t c_stride;
  std::int32_t depth;
  const float* factors;  // null: c is overwritten
};

template <std::int32_t kR, std::int32_t kV>
HWY_INLINE void product_block(const Product& p, std::int32_t row, std::int32_t column) {
  const F32 d;
  const float* a = p.a + row * p.a_stride;
  const float* b = p.b + column;
  float* c = p.c + row * p.c_stride + column;
  VF sums[kR][kV];
  SLUICE_UNROLL for (std::int32_t r = 0; r < kR; ++r) {
    SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) {
      sums[r][i] = p.factors == nullptr ? hn::Zero(d)
                                        : hn::Mul(hn::Set(d, p.factors[row + r]),
                                                  hn::LoadU(d, c + r * p.c_stride + i * kLanes));
    }
  }
  for (std::int32_t k = 0; k < p.depth; ++k, b += p.b_stride) {
    VF x[kV];
    SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) x[i] = hn::LoadU(d, b + i * kLanes);
    SLUICE_UNROLL for (std::int32_t r = 0; r < kR; ++r) {
      const VF y = hn::Set(d, a[r * p.a_stride + k]);
      SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) sums[r][i] =
          hn::MulAdd(y, x[i], sums[r][i]);
    }
  }
  SLUICE_UNROLL for (std::int32_t r = 0; r < kR; ++r) {
    SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) {
      hn::StoreU(sums[r][i], d, c + r * p.c_stride + i * kLanes);
    }
  }
}

template <std::int32_t kV>
HWY_NOINLINE void product_columns(const Product& p, std::int32_t rows, std::int32_t column) {
  std::int32_t r = 0;
  for (; r + kProductRows <= rows; r += kProductRows) product_block<kProductRows, kV>(p, r, column);
  switch (rows - r) {
    case 1: product_block<1, kV>(p, r, column); break;
    case 2: product_block<2, kV>(p, r, column); break;
    case 3: product_block<3, kV>(p, r, column); break;
    case 4: product_block<4, kV>(p, r, column); break;
    case 5: product_block<5, kV>(p, r, column); break;
    default: break;
  }
}

// `columns` is a multiple of kLanes.
HWY_INLINE void product(const Product& p, std::int32_t rows, std::int32_t columns) {
  std::int32_t c = 0;
  for (; c + kProductColumns * kLanes <= columns; c += kProductColumns * kLanes) {
    product_columns<kProductColumns>(p, rows, c);
  }
  if (kProductColumns > 2 && c + 2 * kLanes <= columns) {
    product_columns<2>(p, rows, c);
    c += 2 * kLanes;
  }
  for (; c < columns; c += kLanes) product_columns<1>(p, rows, c);
}

// Four tokens' columns [column, column + lanes of D) go to
// to[(column + lane) * kTileTokens + 0..3].
template <class Kv, class D>
HWY_INLINE void transpose_four(D d, const std::byte* const (&rows)[4], std::int32_t dim,
                               std::int32_t column, float* to) {
#if HWY_TARGET == HWY_SCALAR
  SLUICE_UNROLL for (std::int32_t i = 0; i < 4; ++i) {
    to[column * kTileTokens + i] = hn::GetLane(Kv::load(d, rows[i], dim, column));
  }
#else
  const hn::RepartitionToWide<D> dw;
  using V = hn::Vec<D>;
  const V r0 = Kv::load(d, rows[0], dim, column);
  const V r1 = Kv::load(d, rows[1], dim, column);
  const V r2 = Kv::load(d, rows[2], dim, column);
  const V r3 = Kv::load(d, rows[3], dim, column);
  const auto a = hn::BitCast(dw, hn::InterleaveLower(d, r0, r1));
  const auto b = hn::BitCast(dw, hn::InterleaveLower(d, r2, r3));
  const auto c = hn::BitCast(dw, hn::InterleaveUpper(d, r0, r1));
  const auto e = hn::BitCast(dw, hn::InterleaveUpper(d, r2, r3));
  const V lanes[4] = {
      hn::BitCast(d, hn::InterleaveLower(dw, a, b)), hn::BitCast(d, hn::InterleaveUpper(dw, a, b)),
      hn::BitCast(d, hn::InterleaveLower(dw, c, e)), hn::BitCast(d, hn::InterleaveUpper(dw, c, e))};
  SLUICE_UNROLL for (std::int32_t i = 0; i < 4; ++i) {
    store_blocks(d, lanes[i], to + static_cast<std::ptrdiff_t>(column + i) * kTileTokens);
  }
#endif
}

// K of tokens [begin, begin + count), as [dim][kTileTokens].
template <class Kv>
HWY_INLINE void transpose_k(const PartArgs& args, std::int32_t begin, std::int32_t count,
                            float* to) {
  const F32 d;
  for (std::int32_t t = 0; t < count; t += 4) {
    const std::byte* rows[4];
    SLUICE_UNROLL for (std::int32_t i = 0; i < 4; ++i) {
      const std::int32_t token = t + i < count ? t + i : count - 1;
      rows[i] = row_of<Kv>(args, args.k, begin + token, args.dim_k);
    }
    std::int32_t c = 0;
    for (; c + kLanes <= args.dim_k; c += kLanes) {
      transpose_four<Kv>(d, rows, args.dim_k, c, to + t);
    }
    if constexpr (kLanes > 8) {
      const hn::CappedTag<float, 8> d8;
      for (; c < args.dim_k; c += 8) transpose_four<Kv>(d8, rows, args.dim_k, c, to + t);
    }
  }
}

// Scratch of attend_tiles().
struct TileScratch {
  float* q;        // [query vector][padded(dim_k)]
  float* logits;   // [query vector][kTileTokens]
  float* factors;  // [query vector]
  float* k;        // [dim_k][kTileTokens]
  float* v;        // [kTileTokens][padded(dim_v)]

  static std::size_t floats(std::int32_t queries, std::int32_t dim_k, std::int32_t dim_v) {
    return static_cast<std::size_t>(queries) *
               static_cast<std::size_t>(padded(dim_k) + kTileTokens) +
           static_cast<std::size_t>(padded(queries)) +
           static_cast<std::size_t>(kTileTokens) *
               static_cast<std::size_t>(padded(dim_k) + padded(dim_v));
  }
  static TileScratch at(float* memory, std::int32_t queries, std::int32_t dim_k) {
    float* logits = memory + static_cast<std::ptrdiff_t>(queries) * padded(dim_k);
    float* factors = logits + static_cast<std::ptrdiff_t>(queries) * kTileTokens;
    float* k = factors + padded(queries);
    return {memory, logits, factors, k,
            k + static_cast<std::ptrdiff_t>(padded(dim_k)) * kTileTokens};
  }
};

template <class Kv>
HWY_NOINLINE void attend_tiles(const PartArgs& args, const Partial& result, float* memory) {
  const std::int32_t queries = args.queries();
  const TileScratch scratch = TileScratch::at(memory, queries, args.dim_k);
  const std::int32_t dim_v = padded(args.dim_v);
  pack_queries(args, scratch.q);
  clear(result, queries, args.dim_v);
  for (std::int32_t begin = args.token_begin; begin < args.token_end; begin += kTileTokens) {
    const std::int32_t left = args.token_end - begin;
    const std::int32_t count = left < kTileTokens ? left : kTileTokens;
    transpose_k<Kv>(args, begin, count, scratch.k);
    product({scratch.q, padded(args.dim_k), scratch.k, kTileTokens, scratch.logits, kTileTokens,
             args.dim_k, nullptr},
            queries, (count + kLanes - 1) / kLanes * kLanes);
    for (std::int32_t j = 0; j < queries; ++j) {
      const AttentionRow& row = args.rows[static_cast<std::size_t>(j / args.group)];
      const Visible seen = visible(args, row.position, begin, count);
      scratch.factors[j] =
          soften(scratch.logits + static_cast<std::ptrdiff_t>(j) * kTileTokens, count, seen.begin,
                 seen.end, args.softcap, result.m[j], result.l[j]);
    }
    for (std::int32_t t = 0; t < count; ++t) {
      widen_row<Kv>(row_of<Kv>(args, args.v, begin + t, args.dim_v), args.dim_v,
                    scratch.v + static_cast<std::ptrdiff_t>(t) * dim_v);
    }
    product(
        {scratch.logits, kTileTokens, scratch.v, dim_v, result.acc, dim_v, count, scratch.factors},
        queries, dim_v);
  }
}

}  // namespace sluice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
