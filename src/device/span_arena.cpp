#include "device/span_arena.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"
#include "memory/span_planner.h"

namespace sluice {

ExportedSpan::ExportedSpan(ExportedSpan&& other) noexcept
    : import_(std::exchange(other.import_, {})) {}

ExportedSpan& ExportedSpan::operator=(ExportedSpan&& other) noexcept {
  std::swap(import_, other.import_);
  return *this;
}

ExportedSpan::~ExportedSpan() {
  for (const int descriptor : import_.descriptors) ::close(descriptor);
}

Result<std::unique_ptr<SpanArena>> SpanArena::make(const CudaDevice& device,
                                                   const SpanArenaOptions& options) {
  const SpanShape& shape = options.shape;
  const bool fits = shape.num_lanes > 0 && shape.lane_token_bytes > 0 && shape.max_tokens > 0 &&
                    shape.granule_bytes > 0 && shape.granule_bytes % device.granularity() == 0;
  const std::size_t granules = fits ? options.max_bytes / shape.granule_bytes : 0;
  if (!fits || options.max_spans < 1 || granules < 1 ||
      granules > std::numeric_limits<std::int32_t>::max() / 2) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("CUDA device {} cannot have {} bytes of KV memory in {} spans of {} "
                            "tokens: granules of {} bytes must be whole multiples of {}, and there "
                            "must be one at least",
                            device.ordinal(), options.max_bytes, options.max_spans,
                            shape.max_tokens, shape.granule_bytes, device.granularity()));
  }
  return std::unique_ptr<SpanArena>(new SpanArena(device, options));
}

SpanArena::SpanArena(const CudaDevice& device, const SpanArenaOptions& options)
    : device_(device),
      options_(options),
      book_(options.shape,
            {.granules = static_cast<std::int32_t>(options.max_bytes / options.shape.granule_bytes),
             .spans = options.max_spans}),
      mapper_(device, options.shape, options.max_spans) {}

SpanArena::~SpanArena() {
  static_cast<void>(settle());
  const auto plan = plan_spans(book_, {});
  CHECK(plan.has_value());
  // One by one: what one place or granule refuses is no reason to keep the others.
  for (const SpanOp& op : plan->ops) static_cast<void>(mapper_.run({&op, 1}));
}

Status SpanArena::prepare(std::vector<SpanWish> wishes, std::int32_t keep_free) {
  CHECK(!pending_.valid());
  TRY(const DeviceMemory memory, device_.memory());
  TRY(plan_, plan_spans(book_, {.wishes = std::move(wishes),
                                .keep_free = keep_free,
                                .free_bytes = memory.free_bytes,
                                .reserve_bytes = options_.reserve_bytes}));
  pending_ = std::async(std::launch::async, [this] { return mapper_.run(plan_.ops); });
  return {};
}

Status SpanArena::settle() {
  if (!pending_.valid()) return {};
  const MappedOps mapped = pending_.get();
  for (std::size_t i = 0; i < mapped.done; ++i) book_.apply(plan_.ops[i]);
  return mapped.status;
}

Status SpanArena::move_to(std::vector<SpanWish> wishes, std::int32_t keep_free) {
  TRY_STATUS(prepare(std::move(wishes), keep_free));
  return settle();
}

std::optional<cuda::Pointer> SpanArena::address(SpanId span, std::int32_t lane) const {
  const auto range = book_.find(span);
  if (!range || !book_.range(*range).ready) return std::nullopt;
  return mapper_.address(*range) + book_.shape().offset(book_.shape().place(lane, 0));
}

Result<ExportedSpan> SpanArena::export_span(SpanId span, std::int64_t tokens) const {
  CHECK(!pending_.valid());
  const auto range = book_.find(span);
  const std::int64_t there = range ? book_.range(*range).tokens : 0;
  if (!range || tokens < 0 || tokens > there) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} tokens of span {} cannot be exported: it has {}", tokens,
                            span.value, there));
  }
  const SpanShape& shape = book_.shape();
  ExportedSpan exported(tokens);
  for (std::int32_t lane = 0; lane < shape.num_lanes; ++lane) {
    for (std::int32_t i = 0; i < shape.granules_for(tokens); ++i) {
      const auto place = static_cast<std::size_t>(shape.place(lane, i));
      TRY(const int descriptor, mapper_.export_granule(*book_.range(*range).places[place].granule));
      exported.add(descriptor);
    }
  }
  return exported;
}

}  // namespace sluice
