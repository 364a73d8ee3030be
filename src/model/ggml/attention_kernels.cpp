#include "model/ggml/attention_kernels.h"

// Scalable vectors cannot be held in arrays of registers; such processors have
// NEON as well.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/ggml/attention_kernels.cpp"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "model/ggml/attention_dots-inl.h"
#include "model/ggml/attention_simd-inl.h"
#include "model/ggml/attention_tiles-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::attention::HWY_NAMESPACE {

void attend_part_here(const PartArgs& args, const Partial& result, float* scratch) {
  if (args.type == KvType::kQ8_0) {
    args.dots ? attend_dots<Q8Kv>(args, result, scratch)
              : attend_tiles<Q8Kv>(args, result, scratch);
  } else {
    args.dots ? attend_dots<F16Kv>(args, result, scratch)
              : attend_tiles<F16Kv>(args, result, scratch);
  }
}

void merge_parts_here(const float* m, const float* l, const float* acc, std::int32_t parts,
                      std::size_t stride, float sink, std::int32_t dim_v, float* out) {
  const F32 d;
  float largest = sink;
  for (std::int32_t p = 0; p < parts; ++p) {
    const float part = m[static_cast<std::size_t>(p) * stride];
    largest = part > largest ? part : largest;
  }
  float sum = sink == kNoLogit ? 0.0F : exp2_nonpositive(sink - largest);
  for (std::int32_t p = 0; p < parts; ++p) {
    const std::size_t at = static_cast<std::size_t>(p) * stride;
    sum += l[at] * exp2_nonpositive(m[at] - largest);
  }
  const float whole = sum > 0.0F ? 1.0F / sum : 0.0F;
  for (std::int32_t p = 0; p < parts; ++p) {
    const std::size_t at = static_cast<std::size_t>(p) * stride;
    const float factor = exp2_nonpositive(m[at] - largest) * whole;
    const VF f = hn::Set(d, factor);
    std::int32_t i = 0;
    for (; i + kLanes <= dim_v; i += kLanes) {
      const VF before = p == 0 ? hn::Zero(d) : hn::LoadU(d, out + i);
      hn::StoreU(hn::MulAdd(f, hn::LoadU(d, acc + at + i), before), d, out + i);
    }
    for (; i < dim_v; ++i) {
      out[i] = (p == 0 ? 0.0F : out[i]) + factor * acc[at + static_cast<std::size_t>(i)];
    }
  }
}

void store_f16(const float* from, std::int32_t count, std::byte* to) {
  const hn::CappedTag<float, 8> d;
  const hn::Rebind<hwy::float16_t, decltype(d)> dh;
  constexpr std::int32_t kStep = static_cast<std::int32_t>(hn::MaxLanes(d));
  auto* out = reinterpret_cast<hwy::float16_t*>(to);
  const auto limit = hn::Set(d, 65504.0F);
  for (std::int32_t i = 0; i < count; i += kStep) {
    const auto x = hn::Max(hn::Neg(limit), hn::Min(limit, hn::LoadU(d, from + i)));
    hn::StoreU(hn::DemoteTo(dh, x), dh, out + i);
  }
}

// The scale is rounded to f16 first, so that the integers fit what is stored.
void store_q8(const float* from, std::int32_t count, std::byte* to) {
  const F32 d;
  const hn::RebindToSigned<F32> di;
  const hn::Rebind<std::int8_t, F32> d8;
  const hn::CappedTag<float, 1> d1;
  const hn::Rebind<hwy::float16_t, decltype(d1)> d1h;
  auto* out = reinterpret_cast<std::int8_t*>(to);
  auto* scales = reinterpret_cast<hwy::float16_t*>(to + count);
  for (std::int32_t group = 0; group < count; group += kKvGroup) {
    VF most = hn::Zero(d);
    for (std::int32_t i = group; i < group + kKvGroup; i += kLanes) {
      most = hn::Max(most, hn::Abs(hn::LoadU(d, from + i)));
    }
    const float largest = hn::GetLane(hn::MaxOfLanes(d, most)) / 127.0F;
    const auto scale = hn::DemoteTo(d1h, hn::Set(d1, largest < 65504.0F ? largest : 65504.0F));
    hn::StoreU(scale, d1h, scales++);
    const float stored = hn::GetLane(hn::PromoteTo(d1, scale));
    const VF factor = hn::Set(d, stored > 0.0F ? 1.0F / stored : 0.0F);
    const VF limit = hn::Set(d, 127.0F);
    for (std::int32_t i = group; i < group + kKvGroup; i += kLanes) {
      const VF x = hn::Mul(factor, hn::LoadU(d, from + i));
      const VF bounded = hn::Max(hn::Neg(limit), hn::Min(limit, x));
      hn::StoreU(hn::DemoteTo(d8, hn::BitCast(di, hn::NearestInt(bounded))), d8, out + i);
    }
  }
}

void store_row_here(KvType type, const float* from, std::int32_t count, std::byte* to) {
  type == KvType::kQ8_0 ? store_q8(from, count, to) : store_f16(from, count, to);
}

std::size_t part_scratch_floats_here(std::int32_t queries, std::int32_t dim_k, std::int32_t dim_v) {
  const std::size_t dots = DotScratch::floats(queries, dim_k, dim_v);
  const std::size_t tiles = TileScratch::floats(queries, dim_k, dim_v);
  return dots > tiles ? dots : tiles;
}

const char* target_name_here() {
  return hwy::TargetName(HWY_TARGET);
}

}  // namespace sluice::attention::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::attention {

HWY_EXPORT(attend_part_here);
HWY_EXPORT(merge_parts_here);
HWY_EXPORT(store_row_here);
HWY_EXPORT(part_scratch_floats_here);
HWY_EXPORT(target_name_here);

std::size_t part_scratch_floats(std::int32_t queries, std::int32_t dim_k, std::int32_t dim_v) {
  return HWY_DYNAMIC_DISPATCH(part_scratch_floats_here)(queries, dim_k, dim_v);
}

void attend_part(const PartArgs& args, const Partial& result, float* scratch) {
  HWY_DYNAMIC_DISPATCH(attend_part_here)(args, result, scratch);
}

void merge_parts(const float* m, const float* l, const float* acc, std::int32_t parts,
                 std::size_t stride, float sink, std::int32_t dim_v, float* out) {
  HWY_DYNAMIC_DISPATCH(merge_parts_here)(m, l, acc, parts, stride, sink, dim_v, out);
}

void store_row(KvType type, const float* from, std::int32_t count, std::byte* to) {
  HWY_DYNAMIC_DISPATCH(store_row_here)(type, from, count, to);
}

const char* target_name() {
  return HWY_DYNAMIC_DISPATCH(target_name_here)();
}

}  // namespace sluice::attention
#endif  // HWY_ONCE
