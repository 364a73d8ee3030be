// What is asked of mapped memory for the next window, and the list of calls that brings it about.
//
// Values. A request names every span that shall be there, so that planning is the difference
// between what is and what shall be (span_planner.h). The list is applied to the device by who
// may call it (device/span_mapper.h), on whatever thread, and then to the SpanBook by its owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "base/ids.h"

namespace sluice {

// A span as its owner named it; may be named anew once it has ended.
using SpanId = Id<struct SpanTag, std::uint64_t>;
// One of an arena's virtual ranges, and one piece of its physical memory: indices.
using RangeId = Id<struct RangeTag, std::int32_t>;
using GranuleId = Id<struct GranuleTag, std::int32_t>;

// The first tokens of another span: full granules are mapped here as well, the rest is copied.
struct SpanPrefix {
  SpanId from;
  std::int64_t tokens = 0;
};

// Granules of another process (or arena) for the first tokens, lane by lane. The descriptors
// stay the caller's.
struct SpanImport {
  std::int64_t tokens = 0;
  std::vector<int> descriptors;
};

// A span that shall be there, with memory for so many tokens. Where the KV starts from is heeded
// when the span begins, and ignored after that.
struct SpanWish {
  SpanId span;
  std::int64_t tokens = 0;
  std::optional<SpanPrefix> prefix;
  std::optional<SpanImport> import;
};

struct SpanRequest {
  std::vector<SpanWish> wishes;   // spans that are not named end
  std::int32_t keep_free = 0;     // granules that stay for the next windows, mapped nowhere
  std::size_t free_bytes = 0;     // that the device has now, for all processes
  std::size_t reserve_bytes = 0;  // of these are left to others
};

struct BeginSpan {
  SpanId span;
  RangeId range;
};
struct EndSpan {
  RangeId range;
};
// From here on the span's memory is good for so many tokens.
struct SetTokens {
  RangeId range;
  std::int64_t tokens = 0;
};
struct CreateGranule {
  GranuleId granule;
};
struct ImportGranule {
  GranuleId granule;
  int descriptor = -1;
};
struct ReleaseGranule {
  GranuleId granule;
};
struct MapPlace {
  RangeId range;
  std::int32_t place = 0;
  GranuleId granule;
};
struct UnmapPlace {
  RangeId range;
  std::int32_t place = 0;
};
// Gives access to mapped places [first, first + count).
struct OpenPlaces {
  RangeId range;
  std::int32_t first = 0;
  std::int32_t count = 0;
};
// At the same offset of both.
struct CopyBytes {
  RangeId from;
  RangeId to;
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

using SpanOp = std::variant<BeginSpan, EndSpan, SetTokens, CreateGranule, ImportGranule,
                            ReleaseGranule, MapPlace, UnmapPlace, OpenPlaces, CopyBytes>;

struct SpanPlan {
  std::vector<SpanOp> ops;  // in this order; any number of the first ones leaves a sound arena
};

}  // namespace sluice
