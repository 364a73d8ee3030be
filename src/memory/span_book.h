// What is mapped where: the ranges, places and granules of one arena of spans.
//
// Belongs to the loop that owns the arena; the device is not called here. A granule of our own is
// absent, or held: mapped at `refs` places, or free at none. A foreign one (another process made
// it) is held while it is mapped and never free. apply() takes one operation that the device has
// done, so that after a failure of the n-th call the book says what is there all the same.
//
// Invariant: a span that has begun in full ("ready") has an open place for each of its tokens; a
// granule that several spans map holds tokens that none of them will write.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "memory/span_plan.h"
#include "memory/span_shape.h"

namespace sluice {

class SpanBook final {
 public:
  struct Limits {
    std::int32_t granules = 0;  // of our own, at most
    std::int32_t spans = 0;     // at once
  };
  struct Place {
    std::optional<GranuleId> granule;
    bool open = false;
  };
  struct Range {
    std::optional<SpanId> span;
    bool ready = false;
    std::int64_t tokens = 0;
    std::vector<Place> places;  // empty until first used
  };
  struct Granule {
    bool held = false;
    std::int32_t refs = 0;
  };

  SpanBook(const SpanShape& shape, const Limits& limits);

  void apply(const SpanOp& op);

  [[nodiscard]] const SpanShape& shape() const { return shape_; }
  [[nodiscard]] const Limits& limits() const { return limits_; }
  // Where a span is, ready or half begun.
  [[nodiscard]] std::optional<RangeId> find(SpanId span) const;
  [[nodiscard]] const std::map<SpanId, RangeId>& spans() const { return spans_; }
  [[nodiscard]] const Range& range(RangeId id) const { return ranges_[index(id)]; }
  [[nodiscard]] const std::vector<Range>& ranges() const { return ranges_; }
  // Our own [0, limits().granules), then foreign ones.
  [[nodiscard]] const std::vector<Granule>& granules() const { return granules_; }
  [[nodiscard]] const Granule& granule(GranuleId id) const { return granules_[index(id)]; }
  [[nodiscard]] bool is_foreign(GranuleId id) const { return id.value >= limits_.granules; }

  [[nodiscard]] std::int32_t num_held() const { return num_held_; }        // our own
  [[nodiscard]] std::int32_t num_free() const { return num_free_; }        // of these
  [[nodiscard]] std::int32_t num_foreign() const { return num_foreign_; }  // held
  [[nodiscard]] std::int32_t num_mapped() const { return num_mapped_; }    // places

  // Counters agree with places and granules; O(everything).
  void check_invariants() const;

 private:
  template <class Tag>
  [[nodiscard]] static std::size_t index(Id<Tag, std::int32_t> id) {
    return static_cast<std::size_t>(id.value);
  }
  [[nodiscard]] Place& place(RangeId range, std::int32_t index);

  void done(const BeginSpan& op);
  void done(const EndSpan& op);
  void done(const SetTokens& op);
  void done(const CreateGranule& op);
  void done(const ImportGranule& op);
  void done(const ReleaseGranule& op);
  void done(const MapPlace& op);
  void done(const UnmapPlace& op);
  void done(const OpenPlaces& op);
  void done(const CopyBytes& op);

  SpanShape shape_;
  Limits limits_;
  std::map<SpanId, RangeId> spans_;
  std::vector<Range> ranges_;
  std::vector<Granule> granules_;
  std::int32_t num_held_ = 0;
  std::int32_t num_free_ = 0;
  std::int32_t num_foreign_ = 0;
  std::int32_t num_mapped_ = 0;
};

}  // namespace sluice
