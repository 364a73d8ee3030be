// Makes the calls of a plan on a CUDA device: the addresses of ranges and the handles of granules.
//
// Used by one thread at a time, which need not be the one that plans. Knows nothing of what spans
// mean: that is in the book (memory/span_book.h). An operation is done in full or not at all.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "device/cuda_driver.h"
#include "memory/span_plan.h"
#include "memory/span_shape.h"

namespace sluice {

// How far a plan came.
struct MappedOps {
  std::size_t done = 0;  // operations, from the first
  Status status;         // why not all
};

class SpanMapper final {
 public:
  // `device` outlives this.
  SpanMapper(const CudaDevice& device, const SpanShape& shape, std::int32_t max_spans);
  SpanMapper(const SpanMapper&) = delete;
  SpanMapper& operator=(const SpanMapper&) = delete;
  // Gives the ranges back. Nothing is mapped or held any more: see SpanArena.
  ~SpanMapper();

  [[nodiscard]] MappedOps run(std::span<const SpanOp> ops);

  // Of a range that a span has been in; also while a plan runs that did not begin it.
  [[nodiscard]] cuda::Pointer address(RangeId range) const;
  // A descriptor that another process can import; the caller's.
  [[nodiscard]] Result<int> export_granule(GranuleId granule) const;

 private:
  Status make(const BeginSpan& op);
  Status make(const EndSpan& op);
  Status make(const SetTokens& op);
  Status make(const CreateGranule& op);
  Status make(const ImportGranule& op);
  Status make(const ReleaseGranule& op);
  Status make(const MapPlace& op);
  Status make(const UnmapPlace& op);
  Status make(const OpenPlaces& op);
  Status make(const CopyBytes& op);
  [[nodiscard]] cuda::Handle& handle(GranuleId granule);
  [[nodiscard]] cuda::Pointer address(RangeId range, std::int32_t place) const;

  const CudaDevice& device_;
  const cuda::Api& cu_;
  const SpanShape shape_;
  std::vector<cuda::Pointer> ranges_;  // one for each, and never moved; 0: not reserved
  std::vector<cuda::Handle> handles_;
};

}  // namespace sluice
