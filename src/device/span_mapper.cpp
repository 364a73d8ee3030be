#include "device/span_mapper.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"

namespace sluice {
namespace {

constexpr double kMebibyte = 1 << 20;

template <class Tag>
std::size_t index(Id<Tag, std::int32_t> id) {
  return static_cast<std::size_t>(id.value);
}

std::string sized(const char* call, std::size_t bytes) {
  return fmt::format("{} of {:.1f} MiB", call, static_cast<double>(bytes) / kMebibyte);
}

}  // namespace

SpanMapper::SpanMapper(const CudaDevice& device, const SpanShape& shape, std::int32_t max_spans)
    : device_(device),
      cu_(device.api()),
      shape_(shape),
      ranges_(static_cast<std::size_t>(max_spans)) {}

SpanMapper::~SpanMapper() {
  for (const cuda::Pointer range : ranges_) {
    if (range != 0) static_cast<void>(cu_.free_address(range, shape_.span_bytes()));
  }
}

MappedOps SpanMapper::run(std::span<const SpanOp> ops) {
  if (Status current = device_.make_current(); !current) return {.status = std::move(current)};
  for (std::size_t i = 0; i < ops.size(); ++i) {
    Status status = std::visit([this](const auto& op) { return make(op); }, ops[i]);
    if (!status) {
      status.error().message += fmt::format("; {} of {} operations were done", i, ops.size());
      return {.done = i, .status = std::move(status)};
    }
  }
  return {.done = ops.size()};
}

cuda::Pointer SpanMapper::address(RangeId range) const {
  CHECK_NE(ranges_[index(range)], 0U);
  return ranges_[index(range)];
}

cuda::Pointer SpanMapper::address(RangeId range, std::int32_t place) const {
  return address(range) + shape_.offset(place);
}

cuda::Handle& SpanMapper::handle(GranuleId granule) {
  handles_.resize(std::max(handles_.size(), index(granule) + 1));
  return handles_[index(granule)];
}

Result<int> SpanMapper::export_granule(GranuleId granule) const {
  CHECK_LT(index(granule), handles_.size());
  if (device_.allocation().handle_types == 0) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("CUDA device {} does not export memory", device_.ordinal()));
  }
  int descriptor = -1;
  TRY_STATUS(device_.driver().check(
      cu_.export_handle(&descriptor, handles_[index(granule)], cuda::kFileDescriptor, 0),
      "cuMemExportToShareableHandle"));
  return descriptor;
}

Status SpanMapper::make(const BeginSpan& op) {
  cuda::Pointer& range = ranges_[index(op.range)];
  if (range != 0) return {};  // a span was here before
  const std::size_t bytes = shape_.span_bytes();
  return device_.driver().check(cu_.reserve(&range, bytes, shape_.granule_bytes, 0, 0),
                                sized("cuMemAddressReserve", bytes));
}

Status SpanMapper::make(const EndSpan& /*op*/) {
  return {};
}

Status SpanMapper::make(const SetTokens& /*op*/) {
  return {};
}

Status SpanMapper::make(const CreateGranule& op) {
  const std::size_t bytes = shape_.granule_bytes;
  return device_.driver().check(cu_.create(&handle(op.granule), bytes, &device_.allocation(), 0),
                                sized("cuMemCreate", bytes));
}

Status SpanMapper::make(const ImportGranule& op) {
  // The driver takes a descriptor where others take a handle's address.
  void* const shareable = reinterpret_cast<void*>(static_cast<std::intptr_t>(op.descriptor));
  return device_.driver().check(
      cu_.import_handle(&handle(op.granule), shareable, cuda::kFileDescriptor),
      "cuMemImportFromShareableHandle");
}

Status SpanMapper::make(const ReleaseGranule& op) {
  return device_.driver().check(cu_.release(handle(op.granule)), "cuMemRelease");
}

Status SpanMapper::make(const MapPlace& op) {
  const std::size_t bytes = shape_.granule_bytes;
  return device_.driver().check(
      cu_.map(address(op.range, op.place), bytes, 0, handle(op.granule), 0),
      sized("cuMemMap", bytes));
}

Status SpanMapper::make(const UnmapPlace& op) {
  const std::size_t bytes = shape_.granule_bytes;
  return device_.driver().check(cu_.unmap(address(op.range, op.place), bytes),
                                sized("cuMemUnmap", bytes));
}

Status SpanMapper::make(const OpenPlaces& op) {
  const cuda::Access access{.location = device_.allocation().location};
  const std::size_t bytes = static_cast<std::size_t>(op.count) * shape_.granule_bytes;
  return device_.driver().check(cu_.set_access(address(op.range, op.first), bytes, &access, 1),
                                sized("cuMemSetAccess", bytes));
}

Status SpanMapper::make(const CopyBytes& op) {
  TRY_STATUS(device_.driver().check(
      cu_.copy_on_device(address(op.to) + op.offset, address(op.from) + op.offset, op.bytes),
      "cuMemcpyDtoD"));
  // Copies on a device return before they are done.
  return device_.driver().check(cu_.synchronize(nullptr), "cuStreamSynchronize");
}

}  // namespace sluice
