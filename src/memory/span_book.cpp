#include "memory/span_book.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

Result<SpanShape> span_shape(const SpanShapeRequest& request) {
  const KvLayout& layout = request.layout;
  if (request.num_lanes < 1 || request.num_lanes > layout.num_layers || layout.num_kv_heads < 1 ||
      layout.head_dim_k < 1 || layout.head_dim_v < 1 || layout.block_tokens < 1 ||
      !layout.holds_whole_groups() || request.granularity == 0 || request.max_tokens < 1) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} layers of {} heads of {} and {} elements cannot lie in {} lanes of "
                    "{} tokens, {} bytes of memory at a time",
                    layout.num_layers, layout.num_kv_heads, layout.head_dim_k, layout.head_dim_v,
                    request.num_lanes, request.max_tokens, request.granularity));
  }
  SpanShape shape;
  const std::size_t wanted = std::max(request.granule_bytes, request.granularity);
  shape.granule_bytes =
      (wanted + request.granularity - 1) / request.granularity * request.granularity;
  shape.num_lanes = request.num_lanes;
  const std::int32_t layers = (layout.num_layers + request.num_lanes - 1) / request.num_lanes;
  shape.lane_token_bytes = static_cast<std::size_t>(layers) * layout.layer_bytes() /
                           static_cast<std::size_t>(layout.block_tokens);
  shape.max_tokens = request.max_tokens;
  constexpr std::size_t kAddresses = std::size_t{1} << 46;  // bytes that drivers let one reserve
  if (static_cast<std::size_t>(request.max_tokens) > kAddresses / shape.lane_token_bytes ||
      (shape.lane_bytes(request.max_tokens) + shape.granule_bytes) >
          kAddresses / static_cast<std::size_t>(shape.num_lanes)) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{} tokens of {} bytes in {} lanes are more than {} bytes of addresses",
                    request.max_tokens, shape.lane_token_bytes, shape.num_lanes, kAddresses));
  }
  return shape;
}

SpanBook::SpanBook(const SpanShape& shape, const Limits& limits) : shape_(shape), limits_(limits) {
  CHECK_GE(limits.granules, 0);
  CHECK_GT(limits.spans, 0);
  ranges_.resize(static_cast<std::size_t>(limits.spans));
  granules_.resize(static_cast<std::size_t>(limits.granules));
}

std::optional<RangeId> SpanBook::find(SpanId span) const {
  const auto it = spans_.find(span);
  if (it == spans_.end()) return std::nullopt;
  return it->second;
}

SpanBook::Place& SpanBook::place(RangeId range, std::int32_t index) {
  return ranges_[SpanBook::index(range)].places[static_cast<std::size_t>(index)];
}

void SpanBook::apply(const SpanOp& op) {
  std::visit([this](const auto& o) { done(o); }, op);
}

void SpanBook::done(const BeginSpan& op) {
  Range& range = ranges_[index(op.range)];
  CHECK(!range.span.has_value());
  CHECK(spans_.emplace(op.span, op.range).second);
  range.span = op.span;
  range.places.resize(static_cast<std::size_t>(shape_.num_places()));
}

void SpanBook::done(const EndSpan& op) {
  Range& range = ranges_[index(op.range)];
  CHECK(range.span.has_value());
  CHECK_EQ(spans_.erase(*range.span), 1U);
  range.span.reset();
  range.ready = false;
  range.tokens = 0;
}

void SpanBook::done(const SetTokens& op) {
  Range& range = ranges_[index(op.range)];
  CHECK(range.span.has_value());
  range.ready = true;
  range.tokens = op.tokens;
}

void SpanBook::done(const CreateGranule& op) {
  Granule& granule = granules_[index(op.granule)];
  CHECK(!granule.held && !is_foreign(op.granule));
  granule.held = true;
  ++num_held_;
  ++num_free_;
}

void SpanBook::done(const ImportGranule& op) {
  CHECK(is_foreign(op.granule));
  if (index(op.granule) == granules_.size()) granules_.emplace_back();
  Granule& granule = granules_[index(op.granule)];
  CHECK(!granule.held);
  granule.held = true;
  ++num_foreign_;
}

void SpanBook::done(const ReleaseGranule& op) {
  Granule& granule = granules_[index(op.granule)];
  CHECK(granule.held);
  CHECK_EQ(granule.refs, 0);
  granule.held = false;
  if (is_foreign(op.granule)) {
    --num_foreign_;
    return;
  }
  --num_held_;
  --num_free_;
}

void SpanBook::done(const MapPlace& op) {
  Place& at = place(op.range, op.place);
  Granule& granule = granules_[index(op.granule)];
  CHECK(!at.granule.has_value());
  CHECK(granule.held);
  at = {.granule = op.granule, .open = false};
  if (granule.refs++ == 0 && !is_foreign(op.granule)) --num_free_;
  ++num_mapped_;
}

void SpanBook::done(const UnmapPlace& op) {
  Place& at = place(op.range, op.place);
  CHECK(at.granule.has_value());
  Granule& granule = granules_[index(*at.granule)];
  CHECK_GT(granule.refs, 0);
  if (--granule.refs == 0 && !is_foreign(*at.granule)) ++num_free_;
  at = {};
  --num_mapped_;
}

void SpanBook::done(const OpenPlaces& op) {
  for (std::int32_t i = op.first; i < op.first + op.count; ++i) {
    Place& at = place(op.range, i);
    CHECK(at.granule.has_value());
    at.open = true;
  }
}

void SpanBook::done(const CopyBytes& op) {
  CHECK(op.from != op.to);
}

void SpanBook::check_invariants() const {
  std::vector<std::int32_t> refs(granules_.size());
  std::int32_t mapped = 0;
  for (const Range& range : ranges_) {
    for (std::size_t i = 0; i < range.places.size(); ++i) {
      const Place& at = range.places[i];
      const auto in_lane = static_cast<std::int32_t>(i) % shape_.places_per_lane();
      if (range.ready && in_lane < shape_.granules_for(range.tokens)) CHECK(at.open);
      if (!at.granule) continue;
      CHECK(range.span.has_value());
      ++mapped;
      ++refs[index(*at.granule)];
    }
  }
  CHECK_EQ(mapped, num_mapped_);
  std::int32_t held = 0;
  std::int32_t free = 0;
  std::int32_t foreign = 0;
  for (std::size_t i = 0; i < granules_.size(); ++i) {
    const Granule& granule = granules_[i];
    CHECK_EQ(granule.refs, refs[i]);
    CHECK(granule.held || granule.refs == 0);
    if (!granule.held) continue;
    if (is_foreign(GranuleId(static_cast<std::int32_t>(i)))) {
      ++foreign;
      continue;
    }
    ++held;
    if (granule.refs == 0) ++free;
  }
  CHECK_EQ(held, num_held_);
  CHECK_EQ(free, num_free_);
  CHECK_EQ(foreign, num_foreign_);
  CHECK_LE(num_held_, limits_.granules);
  for (const auto& [span, range] : spans_) CHECK(ranges_[index(range)].span == span);
}

}  // namespace sluice
