// Attention of few query vectors (decode): dot products on K as it lies in its
// blocks, weighted sums of V as it lies; memory is read once, in order.
#if defined(SLUICE_MODEL_GGML_ATTENTION_DOTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_MODEL_GGML_ATTENTION_DOTS_INL_H_
#undef SLUICE_MODEL_GGML_ATTENTION_DOTS_INL_H_
#else
#define SLUICE_MODEL_GGML_ATTENTION_DOTS_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "model/ggml/attention_simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::attention::HWY_NAMESPACE {

// Query vectors and V columns (in vectors) that are held in registers at once.
inline constexpr std::int32_t kDotQueries = kManyRegisters ? 4 : 3;
inline constexpr std::int32_t kDotColumns = kManyRegisters ? 4 : 2;
// Above this many query vectors a row is widened to f32 once, into scratch, and
// not each time that it is used.
inline constexpr std::int32_t kWidenAbove = HWY_TARGET <= HWY_AVX2 || HWY_ARCH_ARM_A64 ? 8 : 1;
inline constexpr std::int32_t kWideRows = 64;
inline constexpr std::int32_t kLogitStride = kChunkTokens + kPadFloats;

HWY_INLINE void prefetch(const std::byte* from, std::ptrdiff_t bytes) {
  for (std::ptrdiff_t i = 0; i < bytes; i += 64) hwy::Prefetch(from + i);
}

// Some tokens whose rows of one head lie one behind the other, and what will be
// read after them.
template <class Rows>
struct Run {
  Rows rows;
  std::int32_t tokens;
  const std::byte* next;
  std::ptrdiff_t next_row_bytes;  // 0: nothing follows
};

// Logits of kQ query vectors. Writes up to 3 floats behind the last one.
template <std::int32_t kQ, class Rows>
HWY_INLINE void dots(const Run<Rows>& run, const float* q, std::ptrdiff_t q_stride,
                     std::int32_t columns, bool prefetches, float* logits) {
  const F32 d;
  const std::int32_t last = run.tokens - 1;
  for (std::int32_t t = 0; t < run.tokens; t += 4) {
    if (prefetches) prefetch(run.next + t * run.next_row_bytes, 4 * run.next_row_bytes);
    const std::int32_t t1 = t + 1 < last ? t + 1 : last;
    const std::int32_t t2 = t + 2 < last ? t + 2 : last;
    const std::int32_t t3 = t + 3 < last ? t + 3 : last;
    VF sums[kQ][4];
    SLUICE_UNROLL for (std::int32_t j = 0; j < kQ; ++j) {
      SLUICE_UNROLL for (std::int32_t i = 0; i < 4; ++i) sums[j][i] = hn::Zero(d);
    }
    for (std::int32_t c = 0; c < columns; c += Rows::kSlice) {
      const auto s0 = run.rows.slice(t, c);
      const auto s1 = run.rows.slice(t1, c);
      const auto s2 = run.rows.slice(t2, c);
      const auto s3 = run.rows.slice(t3, c);
      SLUICE_UNROLL for (std::int32_t i = 0; i < Rows::kSlice; i += kLanes) {
        const VF k0 = s0.load(i);
        const VF k1 = s1.load(i);
        const VF k2 = s2.load(i);
        const VF k3 = s3.load(i);
        SLUICE_UNROLL for (std::int32_t j = 0; j < kQ; ++j) {
          const VF x = hn::LoadU(d, q + j * q_stride + c + i);
          sums[j][0] = hn::MulAdd(x, k0, sums[j][0]);
          sums[j][1] = hn::MulAdd(x, k1, sums[j][1]);
          sums[j][2] = hn::MulAdd(x, k2, sums[j][2]);
          sums[j][3] = hn::MulAdd(x, k3, sums[j][3]);
        }
      }
    }
    SLUICE_UNROLL for (std::int32_t j = 0; j < kQ; ++j) {
      store_sums(sums[j][0], sums[j][1], sums[j][2], sums[j][3], logits + j * kLogitStride + t);
    }
  }
}

template <class Rows>
HWY_INLINE void all_dots(const Run<Rows>& run, std::int32_t queries, const float* q,
                         std::int32_t dim, float* logits) {
  const std::ptrdiff_t stride = padded(dim);
  const std::int32_t columns = (dim + kLanes - 1) / kLanes * kLanes;
  bool prefetches = run.next_row_bytes != 0;
  for (std::int32_t j = 0; j < queries;) {
    const float* from = q + j * stride;
    float* to = logits + j * kLogitStride;
    const std::int32_t left = queries - j;
    if (kDotQueries >= 4 && left >= 4) {
      dots<4>(run, from, stride, columns, prefetches, to);
      j += 4;
    } else if (left >= 3 && !(kDotQueries == 3 && left == 4)) {
      dots<3>(run, from, stride, columns, prefetches, to);
      j += 3;
    } else if (left >= 2) {
      dots<2>(run, from, stride, columns, prefetches, to);
      j += 2;
    } else {
      dots<1>(run, from, stride, columns, prefetches, to);
      j += 1;
    }
    prefetches = false;
  }
}

// acc[query vector][column] += weight[query vector][token] * v[token][column],
// for kQ query vectors and kV vectors of columns.
template <std::int32_t kQ, std::int32_t kV, class Rows>
HWY_INLINE void accumulate(const Run<Rows>& run, const float* weights, std::int32_t column,
                           std::ptrdiff_t acc_stride, bool prefetches, float* acc) {
  const F32 d;
  VF sums[kQ][kV];
  SLUICE_UNROLL for (std::int32_t j = 0; j < kQ; ++j) {
    SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) {
      sums[j][i] = hn::LoadU(d, acc + j * acc_stride + column + i * kLanes);
    }
  }
  for (std::int32_t t = 0; t < run.tokens; ++t) {
    if (prefetches) prefetch(run.next + t * run.next_row_bytes, run.next_row_bytes);
    VF v[kV];
    run.rows.template load<kV>(t, column, v);
    SLUICE_UNROLL for (std::int32_t j = 0; j < kQ; ++j) {
      const VF weight = hn::Set(d, weights[j * kLogitStride + t]);
      SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) sums[j][i] =
          hn::MulAdd(weight, v[i], sums[j][i]);
    }
  }
  SLUICE_UNROLL for (std::int32_t j = 0; j < kQ; ++j) {
    SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) {
      hn::StoreU(sums[j][i], d, acc + j * acc_stride + column + i * kLanes);
    }
  }
}

template <std::int32_t kQ, class Rows>
HWY_INLINE void accumulate_columns(const Run<Rows>& run, const float* weights, std::int32_t dim,
                                   bool prefetches, float* acc) {
  const std::ptrdiff_t stride = padded(dim);
  std::int32_t c = 0;
  for (; c + kDotColumns * kLanes <= dim; c += kDotColumns * kLanes) {
    accumulate<kQ, kDotColumns>(run, weights, c, stride, prefetches, acc);
    prefetches = false;
  }
  if (kDotColumns > 2 && c + 2 * kLanes <= dim) {
    accumulate<kQ, 2>(run, weights, c, stride, prefetches, acc);
    prefetches = false;
    c += 2 * kLanes;
  }
  for (; c < dim; c += kLanes) {
    accumulate<kQ, 1>(run, weights, c, stride, prefetches, acc);
    prefetches = false;
  }
}

template <class Rows>
HWY_INLINE void accumulate_all(const Run<Rows>& run, std::int32_t queries, const float* weights,
                               std::int32_t dim, float* acc) {
  const std::ptrdiff_t stride = padded(dim);
  bool prefetches = run.next_row_bytes != 0;
  for (std::int32_t j = 0; j < queries;) {
    const float* from = weights + j * kLogitStride;
    float* to = acc + j * stride;
    const std::int32_t left = queries - j;
    if (left >= 4) {
      accumulate_columns<4>(run, from, dim, prefetches, to);
      j += 4;
    } else if (left == 3) {
      accumulate_columns<3>(run, from, dim, prefetches, to);
      j += 3;
    } else if (left == 2) {
      accumulate_columns<2>(run, from, dim, prefetches, to);
      j += 2;
    } else {
      accumulate_columns<1>(run, from, dim, prefetches, to);
      j += 1;
    }
    prefetches = false;
  }
}

// Scratch of attend_dots().
struct DotScratch {
  float* q;       // [query vector][padded(dim_k)]
  float* logits;  // [query vector][kLogitStride]
  float* wide;    // [kWideRows][padded(dim)]

  static std::size_t floats(std::int32_t queries, std::int32_t dim_k, std::int32_t dim_v) {
    const std::int32_t wide = padded(dim_k > dim_v ? dim_k : dim_v);
    return static_cast<std::size_t>(queries) *
               static_cast<std::size_t>(padded(dim_k) + kLogitStride) +
           static_cast<std::size_t>(kWideRows) * static_cast<std::size_t>(wide);
  }
  static DotScratch at(float* memory, std::int32_t queries, std::int32_t dim_k) {
    float* logits = memory + static_cast<std::ptrdiff_t>(queries) * padded(dim_k);
    return {memory, logits, logits + static_cast<std::ptrdiff_t>(queries) * kLogitStride};
  }
};

// The K or V rows of tokens [begin, end), and the first of those that will be
// read after them.
struct Stretch {
  const std::byte* tiles;
  std::int32_t dim;
  std::int32_t begin;
  std::int32_t end;
  const std::byte* after;  // null: nothing
};

// Hands each run of rows to `use`, as they lie.
template <class Kv, class Use>
HWY_INLINE void for_runs(const PartArgs& args, const Stretch& s, const Use& use) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(kv_row_bytes(Kv::kType, s.dim));
  for (std::int32_t t = s.begin; t < s.end;) {
    const std::int32_t n = run_of(args, t, s.end);
    const std::byte* next = t + n < s.end ? row_of<Kv>(args, s.tiles, t + n, s.dim) : s.after;
    use(Run<KvRows<Kv>>{{row_of<Kv>(args, s.tiles, t, s.dim), row_bytes, s.dim},
                        n,
                        next,
                        next != nullptr ? row_bytes : 0},
        t - s.begin);
    t += n;
  }
}

// The same, widened to f32 in scratch.
template <class Kv, class Use>
HWY_INLINE void for_wide_runs(const PartArgs& args, const Stretch& s, float* wide, const Use& use) {
  const auto row_bytes = static_cast<std::ptrdiff_t>(kv_row_bytes(Kv::kType, s.dim));
  for (std::int32_t t = s.begin; t < s.end; t += kWideRows) {
    const std::int32_t n = s.end - t < kWideRows ? s.end - t : kWideRows;
    for (std::int32_t i = 0; i < n; ++i) {
      if (t + i + kPadFloats < s.end) {
        prefetch(row_of<Kv>(args, s.tiles, t + i + kPadFloats, s.dim), row_bytes);
      }
      widen_row<Kv>(row_of<Kv>(args, s.tiles, t + i, s.dim), s.dim, wide + i * padded(s.dim));
    }
    use(Run<F32Rows>{{wide, padded(s.dim)}, n, nullptr, 0}, t - s.begin);
  }
}

struct UseForLogits {
  std::int32_t queries;
  const float* q;
  std::int32_t dim;
  float* logits;
  template <class Rows>
  HWY_INLINE void operator()(const Run<Rows>& run, std::int32_t token) const {
    all_dots(run, queries, q, dim, logits + token);
  }
};

struct UseForSums {
  std::int32_t queries;
  const float* weights;
  std::int32_t dim;
  float* acc;
  template <class Rows>
  HWY_INLINE void operator()(const Run<Rows>& run, std::int32_t token) const {
    accumulate_all(run, queries, weights + token, dim, acc);
  }
};

HWY_INLINE void scale_row(float factor, std::int32_t count, float* row) {
  const F32 d;
  const VF f = hn::Set(d, factor);
  for (std::int32_t i = 0; i < count; i += kLanes) {
    hn::StoreU(hn::Mul(f, hn::LoadU(d, row + i)), d, row + i);
  }
}

HWY_INLINE void clear(const Partial& result, std::int32_t queries, std::int32_t dim_v) {
  for (std::int32_t j = 0; j < queries; ++j) {
    result.m[j] = kNoLogit;
    result.l[j] = 0.0F;
  }
  const std::ptrdiff_t floats = static_cast<std::ptrdiff_t>(queries) * padded(dim_v);
  for (std::ptrdiff_t i = 0; i < floats; ++i) result.acc[i] = 0.0F;
}

// Logits become weights, and what was summed before is scaled to them.
HWY_INLINE void soften_all(const PartArgs& args, std::int32_t begin, std::int32_t count,
                           float* logits, const Partial& result) {
  const std::int32_t dim_v = padded(args.dim_v);
  const std::int32_t queries = args.queries();
  for (std::int32_t j = 0; j < queries; ++j) {
    const AttentionRow& row = args.rows[static_cast<std::size_t>(j / args.group)];
    const Visible seen = visible(args, row.position, begin, count);
    const float factor = soften(logits + static_cast<std::ptrdiff_t>(j) * kLogitStride, count,
                                seen.begin, seen.end, args.softcap, result.m[j], result.l[j]);
    if (factor != 1.0F) {
      scale_row(factor, dim_v, result.acc + static_cast<std::ptrdiff_t>(j) * dim_v);
    }
  }
}

// Chunks end at multiples of kChunkTokens and logits lie in the same lanes
// whatever other rows are there, so that a row's result is the same to the bit.
template <class Kv>
HWY_NOINLINE void attend_dots(const PartArgs& args, const Partial& result, float* memory) {
  const std::int32_t queries = args.queries();
  const DotScratch scratch = DotScratch::at(memory, queries, args.dim_k);
  const bool widen_k = queries > kWidenAbove || args.dim_k % kLanes != 0;
  const bool widen_v = queries > kWidenAbove || args.dim_v % kLanes != 0;
  const UseForLogits find_logits{queries, scratch.q, args.dim_k, scratch.logits};
  const UseForSums add_up{queries, scratch.logits, args.dim_v, result.acc};
  pack_queries(args, scratch.q);
  clear(result, queries, args.dim_v);
  std::int32_t begin = args.token_begin / kPadFloats * kPadFloats;
  while (begin < args.token_end) {
    const std::int32_t chunk_end = (begin / kChunkTokens + 1) * kChunkTokens;
    const std::int32_t end = chunk_end < args.token_end ? chunk_end : args.token_end;
    const Stretch k{args.k, args.dim_k, begin, end, row_of<Kv>(args, args.v, begin, args.dim_v)};
    const bool more = end < args.token_end;
    const Stretch v{args.v, args.dim_v, begin, end,
                    more ? row_of<Kv>(args, args.k, end, args.dim_k) : nullptr};
    if (widen_k) {
      for_wide_runs<Kv>(args, k, scratch.wide, find_logits);
    } else {
      for_runs<Kv>(args, k, find_logits);
    }
    soften_all(args, begin, end - begin, scratch.logits, result);
    if (widen_v) {
      for_wide_runs<Kv>(args, v, scratch.wide, add_up);
    } else {
      for_runs<Kv>(args, v, add_up);
    }
    begin = end;
  }
}

}  // namespace sluice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
