// How a sequence's KV lies in a span: one virtual range of a device, in which the KV of a
// group of layers is contiguous from the first token to the last.
//
//   span  = [lane 0 | lane 1 | ...]           a lane: one group of layers
//   lane  = [token 0 | token 1 | ...]         max_tokens of them, then what fills its last granule
//   place = granule_bytes of a lane; physical memory is mapped under a place, or is not
//
// With one lane a token's KV of all layers lies together and a grant is finest; with a lane a
// layer attention reads without gaps, and a granule holds more tokens of fewer layers. A granule
// may end within a token: lanes are contiguous, so that nobody sees where.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_layout.h"
#include "base/result.h"

namespace sluice {

struct SpanShape {
  std::size_t granule_bytes = 0;  // a multiple of what the device maps
  std::int32_t num_lanes = 0;
  std::size_t lane_token_bytes = 0;
  std::int64_t max_tokens = 0;

  friend bool operator==(const SpanShape&, const SpanShape&) = default;

  // Of a lane: granules that `tokens` need, and those that they fill.
  [[nodiscard]] constexpr std::int32_t granules_for(std::int64_t tokens) const {
    return static_cast<std::int32_t>((lane_bytes(tokens) + granule_bytes - 1) / granule_bytes);
  }
  [[nodiscard]] constexpr std::int32_t full_granules(std::int64_t tokens) const {
    return static_cast<std::int32_t>(lane_bytes(tokens) / granule_bytes);
  }
  [[nodiscard]] constexpr std::size_t lane_bytes(std::int64_t tokens) const {
    return static_cast<std::size_t>(tokens) * lane_token_bytes;
  }
  [[nodiscard]] constexpr std::int32_t places_per_lane() const { return granules_for(max_tokens); }
  [[nodiscard]] constexpr std::int32_t num_places() const { return num_lanes * places_per_lane(); }
  [[nodiscard]] constexpr std::int32_t place(std::int32_t lane, std::int32_t index) const {
    return lane * places_per_lane() + index;
  }
  // Where a place starts in the span.
  [[nodiscard]] constexpr std::size_t offset(std::int32_t place) const {
    return static_cast<std::size_t>(place) * granule_bytes;
  }
  [[nodiscard]] constexpr std::size_t span_bytes() const { return offset(num_places()); }
};

// The shape for a layout whose layers are dealt to `num_lanes` groups of equal size, the last one
// with what is left. kInvalidArgument: a number that cannot be.
struct SpanShapeRequest {
  KvLayout layout;
  std::int32_t num_lanes = 1;
  std::size_t granule_bytes = 0;  // at least
  std::size_t granularity = 0;    // of the device
  std::int64_t max_tokens = 0;
};
[[nodiscard]] Result<SpanShape> span_shape(const SpanShapeRequest& request);

}  // namespace sluice
