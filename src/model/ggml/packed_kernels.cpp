#include "model/ggml/packed_kernels.h"

#include <cstring>

// The instruction that this is made for (VNNI) is in the AVX-512 of servers only.
#define HWY_WANT_AVX3_DL 1
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ggml/packed_kernels.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

// Arrays of vectors stay in registers only if loops over them are unrolled.
#undef SLUICE_UNROLL
#if HWY_COMPILER_GCC_ACTUAL
#define SLUICE_UNROLL _Pragma("GCC unroll 16")
#else
#define SLUICE_UNROLL _Pragma("unroll")
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::packed::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_TARGET <= HWY_AVX2
constexpr std::int64_t kQuads = kPackedBlock / 4;
using F32 = hn::CappedTag<float, 16>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using VU = hn::Vec<U32>;
inline constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(F32()));
// Columns at once: two accumulators each beside the weights, in 32 or 16 registers.
inline constexpr int kTile = HWY_TARGET <= HWY_AVX3 ? 8 : 4;

// A column's part of a block.
struct Column {
  const std::byte* integers;
  const float* scales;
  const float* sums;
};

// sum += in each lane the products of four unsigned bytes of `w` and the four
// signed ones at `x`, the same for all lanes.
#if HWY_TARGET <= HWY_AVX3_DL
// By hand, since Highway's target for processors with VNNI does not name VNNI.
HWY_INLINE VI dot(VI sum, VU w, const std::byte* x) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(sum.raw)
      : "v"(w.raw), "m"(*reinterpret_cast<const std::int32_t*>(x)));
  return sum;
}
HWY_INLINE VI whole(VI sum) {
  return sum;
}
#else
// Without VNNI sums are of 16 bits, pairwise: room for all of a block's if the
// bytes of w hold 4 bits (8 * 2 * 15 * 127 is less than 2^15).
HWY_INLINE VI dot(VI sum, VU w, const std::byte* x) {
  std::int32_t four = 0;
  std::memcpy(&four, x, sizeof(four));
  const VI columns = hn::Set(I32(), four);
#if HWY_TARGET <= HWY_AVX3
  return VI{_mm512_add_epi16(sum.raw, _mm512_maddubs_epi16(w.raw, columns.raw))};
#else
  return VI{_mm256_add_epi16(sum.raw, _mm256_maddubs_epi16(w.raw, columns.raw))};
#endif
}
HWY_INLINE VI whole(VI sum) {
#if HWY_TARGET <= HWY_AVX3
  return VI{_mm512_madd_epi16(sum.raw, _mm512_set1_epi16(1))};
#else
  return VI{_mm256_madd_epi16(sum.raw, _mm256_set1_epi16(1))};
#endif
}
#endif

HWY_INLINE VF halves(const std::byte* at) {
  const hn::Rebind<hwy::float16_t, F32> d;
  return hn::PromoteTo(F32(), hn::LoadU(d, reinterpret_cast<const hwy::float16_t*>(at)));
}

HWY_INLINE VU bytes(const std::byte* at) {
  return hn::LoadU(U32(), reinterpret_cast<const std::uint32_t*>(at));
}

// How a block of a type lies: `at` is that of the first of kLanes rows.
struct Nibbles {
  static constexpr std::size_t kBytes = kPackedRows * (4 + kPackedBlock / 2);
  static constexpr std::size_t kNumbers = kPackedRows * 4;
  static HWY_INLINE VF least(const std::byte* block, VF /*scale*/, std::int64_t row) {
    return halves(block + (kPackedRows + row) * 2);
  }
  template <int kC>
  static HWY_INLINE void dots(const std::byte* numbers, const Column (&x)[kC], VI (&sums)[kC]) {
    const VU low = hn::Set(U32(), 0x0F0F0F0FU);
    SLUICE_UNROLL for (std::int64_t q = 0; q < kQuads / 2; ++q) {
      const VU both = bytes(numbers + q * kPackedRows * 4);
      const VU first = hn::And(both, low);
      const VU second = hn::And(hn::ShiftRight<4>(both), low);
      SLUICE_UNROLL for (int c = 0; c < kC; ++c) {
        sums[c] = dot(sums[c], first, x[c].integers + q * 4);
        sums[c] = dot(sums[c], second, x[c].integers + (q + kQuads / 2) * 4);
      }
    }
  }
};
struct Bytes {
  static constexpr std::size_t kBytes = kPackedRows * (2 + kPackedBlock);
  static constexpr std::size_t kNumbers = kPackedRows * 2;
  static HWY_INLINE VF least(const std::byte* /*block*/, VF scale, std::int64_t /*row*/) {
    return hn::Mul(scale, hn::Set(F32(), -128.0F));
  }
  template <int kC>
  static HWY_INLINE void dots(const std::byte* numbers, const Column (&x)[kC], VI (&sums)[kC]) {
    SLUICE_UNROLL for (std::int64_t q = 0; q < kQuads; ++q) {
      const VU w = bytes(numbers + q * kPackedRows * 4);
      SLUICE_UNROLL for (int c = 0; c < kC; ++c) sums[c] = dot(sums[c], w, x[c].integers + q * 4);
    }
  }
};

// kLanes rows times kC columns.
template <class W, int kC>
HWY_INLINE void multiply_tile(const std::byte* group, std::int64_t row, const RoundedColumns& x,
                              std::int64_t column, std::int64_t rows, float* y,
                              std::size_t stride) {
  const std::int64_t blocks = x.size / kPackedBlock;
  Column columns[kC];
  VF total[kC];
  SLUICE_UNROLL for (int c = 0; c < kC; ++c) {
    const std::byte* at = x.data + static_cast<std::size_t>(column + c) * x.stride;
    const auto* scales = reinterpret_cast<const float*>(at + x.size);
    columns[c] = {at, scales, scales + blocks};
    total[c] = hn::Zero(F32());
  }
  for (std::int64_t b = 0; b < blocks; ++b, group += W::kBytes) {
    VI sums[kC];
    SLUICE_UNROLL for (int c = 0; c < kC; ++c) sums[c] = hn::Zero(I32());
    W::dots(group + W::kNumbers + row * 4, columns, sums);
    const VF scale = halves(group + row * 2);
    const VF least = W::least(group, scale, row);
    SLUICE_UNROLL for (int c = 0; c < kC; ++c) {
      const VF product = hn::ConvertTo(F32(), whole(sums[c]));
      const VF both = hn::Mul(scale, hn::Set(F32(), *columns[c].scales++));
      total[c] = hn::MulAdd(product, both, total[c]);
      total[c] = hn::MulAdd(least, hn::Set(F32(), *columns[c].sums++), total[c]);
      columns[c].integers += kPackedBlock;
    }
  }
  SLUICE_UNROLL for (int c = 0; c < kC; ++c) {
    float* to = y + static_cast<std::size_t>(column + c) * stride + row;
    if (rows - row >= kLanes) {
      hn::StoreU(total[c], F32(), to);
    } else {
      alignas(64) float all[kLanes];
      hn::Store(total[c], F32(), all);
      for (std::int64_t r = 0; row + r < rows; ++r) to[r] = all[r];
    }
  }
}

template <class W, int kC>
void multiply_rest(const std::byte* group, std::int64_t row, const RoundedColumns& x,
                   std::int64_t column, std::int64_t rows, float* y, std::size_t stride) {
  if constexpr (kC > 0) {
    if (x.count - column < kC) {
      multiply_rest<W, kC - 1>(group, row, x, column, rows, y, stride);
    } else {
      multiply_tile<W, kC>(group, row, x, column, rows, y, stride);
    }
  }
}

template <class W>
void multiply_all(const std::byte* group, const RoundedColumns& x, std::int64_t rows, float* y,
                  std::size_t stride) {
  std::int64_t column = 0;
  for (; column + kTile <= x.count; column += kTile) {
    for (std::int64_t row = 0; row < rows; row += kLanes) {
      multiply_tile<W, kTile>(group, row, x, column, rows, y, stride);
    }
  }
  for (std::int64_t row = 0; row < rows; row += kLanes) {
    multiply_rest<W, kTile - 1>(group, row, x, column, rows, y, stride);
  }
}

bool is_fast_here(PackedKind kind) {
  return kind == PackedKind::kNibbles || HWY_TARGET <= HWY_AVX3_DL;
}

void multiply_group_here(PackedKind kind, const std::byte* group, const RoundedColumns& x,
                         std::int64_t rows, float* y, std::size_t stride) {
#if HWY_TARGET <= HWY_AVX3_DL
  if (kind == PackedKind::kBytes) return multiply_all<Bytes>(group, x, rows, y, stride);
#endif
  HWY_ASSERT(kind == PackedKind::kNibbles);
  multiply_all<Nibbles>(group, x, rows, y, stride);
}

#else  // not worth it without instructions that multiply bytes in pairs

bool is_fast_here(PackedKind /*kind*/) {
  return false;
}

void multiply_group_here(PackedKind /*kind*/, const std::byte* /*group*/,
                         const RoundedColumns& /*x*/, std::int64_t /*rows*/, float* /*y*/,
                         std::size_t /*stride*/) {
  HWY_ABORT("no product of packed weights for this processor");
}

#endif  // HWY_TARGET <= HWY_AVX2

void round_column_here(const float* from, std::int64_t size, std::byte* to) {
  const hn::CappedTag<float, 16> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<std::int8_t, decltype(d)> d8;
  constexpr auto kStep = static_cast<std::int64_t>(hn::MaxLanes(d));
  auto* integers = reinterpret_cast<std::int8_t*>(to);
  auto* scales = reinterpret_cast<float*>(to + size);
  float* sums = scales + size / kPackedBlock;
  for (std::int64_t block = 0; block < size; block += kPackedBlock) {
    auto most = hn::Zero(d);
    for (std::int64_t i = block; i < block + kPackedBlock; i += kStep) {
      most = hn::Max(most, hn::Abs(hn::LoadU(d, from + i)));
    }
    const float scale = hn::GetLane(hn::MaxOfLanes(d, most)) / 127.0F;
    const auto factor = hn::Set(d, scale > 0.0F ? 1.0F / scale : 0.0F);
    auto sum = hn::Zero(di);
    for (std::int64_t i = block; i < block + kPackedBlock; i += kStep) {
      const auto rounded = hn::NearestInt(hn::Mul(factor, hn::LoadU(d, from + i)));
      sum = hn::Add(sum, rounded);
      hn::StoreU(hn::DemoteTo(d8, rounded), d8, integers + i);
    }
    *scales++ = scale;
    *sums++ = scale * static_cast<float>(hn::GetLane(hn::SumOfLanes(di, sum)));
  }
}

}  // namespace sluice::packed::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::packed {

HWY_EXPORT(is_fast_here);
HWY_EXPORT(multiply_group_here);
HWY_EXPORT(round_column_here);

bool is_fast(PackedKind kind) {
  return HWY_DYNAMIC_DISPATCH(is_fast_here)(kind);
}

void round_column(const float* from, std::int64_t size, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(round_column_here)(from, size, to);
}

void multiply_group(PackedKind kind, const std::byte* group, const RoundedColumns& x,
                    std::int64_t rows, float* y, std::size_t stride) {
  HWY_DYNAMIC_DISPATCH(multiply_group_here)(kind, group, x, rows, y, stride);
}

}  // namespace sluice::packed
#endif  // HWY_ONCE
