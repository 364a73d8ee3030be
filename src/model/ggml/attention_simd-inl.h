// Vector helpers of the attention kernels, compiled once for each target.
#if defined(SLUICE_MODEL_GGML_ATTENTION_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_MODEL_GGML_ATTENTION_SIMD_INL_H_
#undef SLUICE_MODEL_GGML_ATTENTION_SIMD_INL_H_
#else
#define SLUICE_MODEL_GGML_ATTENTION_SIMD_INL_H_
#endif

#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include "model/ggml/attention_kernels.h"

// Arrays of vectors stay in registers only if loops over them are unrolled.
#undef SLUICE_UNROLL
#if HWY_COMPILER_GCC_ACTUAL
#define SLUICE_UNROLL _Pragma("GCC unroll 8")
#else
#define SLUICE_UNROLL _Pragma("unroll")
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::attention::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using VF = hn::Vec<F32>;
inline constexpr std::int32_t kLanes = static_cast<std::int32_t>(hn::MaxLanes(F32()));
static_assert(kPadFloats % kLanes == 0);

// Accumulators that fit the registers: 32 on AVX-512 and Arm, else 16.
#if HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM_A64
inline constexpr bool kManyRegisters = true;
#else
inline constexpr bool kManyRegisters = false;
#endif

// The types of KV: how elements [column, column + lanes of D) of a row become
// floats. `column` is a multiple of D's lanes. A slice is kSlice columns of a row
// with what is common to them; it begins at a multiple of kSlice.
struct F16Kv {
  static constexpr KvType kType = KvType::kF16;
  static constexpr std::int32_t kSlice = kLanes;
  struct Slice {
    const hwy::float16_t* at;
    HWY_INLINE VF load(std::int32_t column) const {
      return hn::PromoteTo(F32(), hn::LoadU(hn::Rebind<hwy::float16_t, F32>(), at + column));
    }
  };
  static HWY_INLINE Slice slice(const std::byte* row, std::int32_t, std::ptrdiff_t column) {
    return {reinterpret_cast<const hwy::float16_t*>(row) + column};
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* row, std::int32_t,
                                    std::ptrdiff_t column) {
    const auto* at = reinterpret_cast<const hwy::float16_t*>(row) + column;
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), at));
  }
};
struct Q8Kv {
  static constexpr KvType kType = KvType::kQ8_0;
  static constexpr std::int32_t kSlice = kKvGroup;
  template <class D>
  static HWY_INLINE hn::Vec<D> scale(D d, const std::byte* row, std::int32_t dim,
                                     std::ptrdiff_t column) {
    const auto* scales = reinterpret_cast<const std::uint16_t*>(row + dim);
    const auto half = hn::Set(hn::Rebind<std::uint16_t, D>(), scales[column / kKvGroup]);
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), half));
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> whole(D d, const std::int8_t* at) {
    const auto integers = hn::LoadU(hn::Rebind<std::int8_t, D>(), at);
    return hn::ConvertTo(d, hn::PromoteTo(hn::RebindToSigned<D>(), integers));
  }
  struct Slice {
    const std::int8_t* at;
    VF scale;
    HWY_INLINE VF load(std::int32_t column) const {
      return hn::Mul(scale, whole(F32(), at + column));
    }
  };
  static HWY_INLINE Slice slice(const std::byte* row, std::int32_t dim, std::ptrdiff_t column) {
    static_assert(kKvGroup % kLanes == 0);
    return {reinterpret_cast<const std::int8_t*>(row) + column, scale(F32(), row, dim, column)};
  }
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const std::byte* row, std::int32_t dim,
                                    std::ptrdiff_t column) {
    return hn::Mul(scale(d, row, dim, column),
                   whole(d, reinterpret_cast<const std::int8_t*>(row) + column));
  }
};

// A head's rows as they lie in a block, and as scratch holds them.
template <class Kv>
struct KvRows {
  const std::byte* data;
  std::ptrdiff_t stride;  // bytes
  std::int32_t dim;
  static constexpr std::int32_t kSlice = Kv::kSlice;
  HWY_INLINE typename Kv::Slice slice(std::ptrdiff_t row, std::ptrdiff_t column) const {
    return Kv::slice(data + row * stride, dim, column);
  }
  // kV vectors of a row from `column` on, a multiple of them all or of a slice.
  template <std::int32_t kV>
  HWY_INLINE void load(std::ptrdiff_t row, std::ptrdiff_t column, VF (&to)[kV]) const {
    constexpr std::int32_t kWidth = kV * kLanes;
    constexpr std::int32_t kEach = kWidth < kSlice ? kWidth : kSlice;
    SLUICE_UNROLL for (std::int32_t c = 0; c < kWidth; c += kEach) {
      // A part of a slice begins inside it.
      const std::ptrdiff_t begin = column + c;
      const std::ptrdiff_t inside = kEach < kSlice ? begin % kSlice : 0;
      const typename Kv::Slice part = slice(row, begin - inside);
      SLUICE_UNROLL for (std::int32_t i = 0; i < kEach; i += kLanes) {
        to[(c + i) / kLanes] = part.load(static_cast<std::int32_t>(inside) + i);
      }
    }
  }
};
struct F32Rows {
  static constexpr std::int32_t kSlice = kLanes;
  const float* data;
  std::ptrdiff_t stride;
  struct Slice {
    const float* at;
    HWY_INLINE VF load(std::int32_t column) const { return hn::LoadU(F32(), at + column); }
  };
  HWY_INLINE Slice slice(std::ptrdiff_t row, std::ptrdiff_t column) const {
    return {data + row * stride + column};
  }
  template <std::int32_t kV>
  HWY_INLINE void load(std::ptrdiff_t row, std::ptrdiff_t column, VF (&to)[kV]) const {
    SLUICE_UNROLL for (std::int32_t i = 0; i < kV; ++i) {
      to[i] = slice(row, column).load(i * kLanes);
    }
  }
};

// 2^x for x <= 0, relative error about 2e-7; exactly 0 below 2^-126 and for -inf.
HWY_INLINE VF exp2_nonpositive(VF x) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const VF least = hn::Set(d, -126.0F);
  const VF clamped = hn::Max(x, least);
  // Adding 1.5 * 2^23 rounds to an integer that then lies in the lowest bits.
  const VF round = hn::Set(d, 12582912.0F);
  const VF n = hn::Add(clamped, round);
  const VF f = hn::Sub(clamped, hn::Sub(n, round));
  VF p = hn::Set(d, 0.00133908634F);
  p = hn::MulAdd(p, f, hn::Set(d, 0.00967603192F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.0555035711F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.240221075F));
  p = hn::MulAdd(p, f, hn::Set(d, 0.693147188F));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0F));
  const VF scaled =
      hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, n))));
  return hn::IfThenElseZero(hn::Ge(x, least), scaled);
}

HWY_INLINE float exp2_nonpositive(float x) {
  return hn::GetLane(exp2_nonpositive(hn::Set(F32(), x)));
}

// The sums of a, b, c and e, as four floats at `to`.
HWY_INLINE void store_sums(VF a, VF b, VF c, VF e, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a);
  to[1] = hn::GetLane(b);
  to[2] = hn::GetLane(c);
  to[3] = hn::GetLane(e);
#else
  const F32 d;
  const hn::RepartitionToWide<F32> dw;
  const VF ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const VF lower =
      hn::BitCast(d, hn::InterleaveLower(dw, hn::BitCast(dw, ab), hn::BitCast(dw, ce)));
  const VF upper =
      hn::BitCast(d, hn::InterleaveUpper(dw, hn::BitCast(dw, ab), hn::BitCast(dw, ce)));
  const VF sums = hn::Add(lower, upper);  // in each 128-bit block
#if HWY_TARGET <= HWY_AVX3
  const hn::Half<F32> dh;
  const auto half = hn::Add(hn::LowerHalf(dh, sums), hn::UpperHalf(dh, sums));
  const hn::Half<decltype(dh)> dq;
  hn::StoreU(hn::Add(hn::LowerHalf(dq, half), hn::UpperHalf(dq, half)), dq, to);
#elif HWY_TARGET == HWY_AVX2
  const hn::Half<F32> dh;
  hn::StoreU(hn::Add(hn::LowerHalf(dh, sums), hn::UpperHalf(dh, sums)), dh, to);
#else
  static_assert(kLanes == 4);
  hn::StoreU(sums, d, to);
#endif
#endif
}

// The 128-bit blocks of `v` go to to[0..3], to[4 * kTileTokens..], and so on: what
// transposing four by four leaves in one vector.
#if HWY_TARGET != HWY_SCALAR
template <class D>
HWY_INLINE void store_blocks(D d, hn::Vec<D> v, float* to) {
  if constexpr (hn::MaxLanes(D()) <= 4) {
    hn::StoreU(v, d, to);
  } else {
    const hn::Half<D> dh;
    constexpr auto kHalf = static_cast<std::ptrdiff_t>(hn::MaxLanes(hn::Half<D>()));
    store_blocks(dh, hn::LowerHalf(dh, v), to);
    store_blocks(dh, hn::UpperHalf(dh, v), to + kHalf * kTileTokens);
  }
}
#endif

// A row of KV to f32, zeros up to a multiple of kPadFloats. `count` is a multiple
// of 8.
template <class Kv>
HWY_INLINE void widen_row(const std::byte* from, std::int32_t count, float* to) {
  const F32 d;
  std::int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) hn::StoreU(Kv::load(d, from, count, i), d, to + i);
  if constexpr (kLanes > 8) {
    const hn::CappedTag<float, 8> d8;
    for (; i < count; i += 8) hn::StoreU(Kv::load(d8, from, count, i), d8, to + i);
  }
  for (; i < padded(count); ++i) to[i] = 0.0F;
}

// Turns logits [0, count) of one query vector into weights 2^(logit - m) and
// takes them into the running m and l. Only [begin, end) are visible; the others
// get weight 0. Room up to the next multiple of kPadFloats is overwritten.
// Returns the factor by which what was summed before must be multiplied.
HWY_INLINE float soften(float* logits, std::int32_t count, std::int32_t begin, std::int32_t end,
                        float softcap, float& m, float& l) {
  const F32 d;
  const std::int32_t filled = padded(count);
  if (begin >= end) {
    for (std::int32_t i = 0; i < filled; ++i) logits[i] = 0.0F;
    return 1.0F;
  }
  if (softcap != 0.0F) {
    const VF cap = hn::Set(d, softcap);
    for (std::int32_t i = 0; i < count; i += kLanes) {
      hn::StoreU(hn::Mul(cap, hn::Tanh(d, hn::LoadU(d, logits + i))), d, logits + i);
    }
  }
  for (std::int32_t i = 0; i < begin; ++i) logits[i] = -HUGE_VALF;
  for (std::int32_t i = end; i < filled; ++i) logits[i] = -HUGE_VALF;
  VF largest = hn::Set(d, m);
  for (std::int32_t i = 0; i < filled; i += kLanes) {
    largest = hn::Max(largest, hn::LoadU(d, logits + i));
  }
  const float new_m = hn::GetLane(hn::MaxOfLanes(d, largest));
  const VF shift = hn::Set(d, new_m);
  VF sum = hn::Zero(d);
  for (std::int32_t i = 0; i < filled; i += kLanes) {
    const VF weight = exp2_nonpositive(hn::Sub(hn::LoadU(d, logits + i), shift));
    sum = hn::Add(sum, weight);
    hn::StoreU(weight, d, logits + i);
  }
  const float factor = m == new_m ? 1.0F : exp2_nonpositive(m - new_m);
  l = l * factor + hn::GetLane(hn::SumOfLanes(d, sum));
  m = new_m;
  return factor;
}

// Where token `token` of the part's head lies; k or v.
template <class Kv>
HWY_INLINE const std::byte* row_of(const PartArgs& args, const std::byte* tiles, std::int32_t token,
                                   std::int32_t dim) {
  const std::int32_t mask = (1 << args.block_shift) - 1;
  const auto block = static_cast<std::size_t>(args.blocks[token >> args.block_shift].value);
  return tiles + block * args.block_bytes +
         static_cast<std::size_t>(token & mask) * kv_row_bytes(Kv::kType, dim);
}

// How many tokens from `token` on lie one behind the other, at most to `end`.
HWY_INLINE std::int32_t run_of(const PartArgs& args, std::int32_t token, std::int32_t end) {
  const std::int32_t size = 1 << args.block_shift;
  const std::int32_t left = size - (token & (size - 1));
  return left < end - token ? left : end - token;
}

// The query vectors, scaled, [query vector][padded(dim_k)].
HWY_INLINE void pack_queries(const PartArgs& args, float* to) {
  const F32 d;
  const VF scale = hn::Set(d, args.q_scale);
  const std::int32_t stride = padded(args.dim_k);
  for (const AttentionRow& row : args.rows) {
    for (std::int32_t h = 0; h < args.group; ++h, to += stride) {
      const float* from = args.q.data + row.row * args.q.row_stride + h * args.q.head_stride;
      std::int32_t i = 0;
      for (; i + kLanes <= args.dim_k; i += kLanes) {
        hn::StoreU(hn::Mul(scale, hn::LoadU(d, from + i)), d, to + i);
      }
      for (; i < args.dim_k; ++i) to[i] = from[i] * args.q_scale;
      for (; i < stride; ++i) to[i] = 0.0F;
    }
  }
}

// The tokens of [token_begin, token_end) that the row at `position` sees,
// counted from `origin`.
struct Visible {
  std::int32_t begin;
  std::int32_t end;
};
HWY_INLINE Visible visible(const PartArgs& args, std::int32_t position, std::int32_t origin,
                           std::int32_t count) {
  const std::int32_t first = position - args.window + 1 - origin;
  const std::int32_t behind = position + 1 - origin;
  return {first < 0 ? 0 : first, behind < count ? behind : count};
}

}  // namespace sluice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
