// The CUDA driver's virtual memory management on host memory, for tests of who calls it.
//
// A reserved range is a mapping without access, physical memory a memfd, a mapping that file over
// the range, and access mprotect: what one range writes another reads, and what is not mapped or
// not opened faults, as on a device. Misuse that a driver refuses is refused: sizes that are not
// whole granules, a place that is mapped, part of a mapping, a handle that was released.
//
// Thread-safe. Counts what lives, and fails the calls that a test names (fake_cuda.h).
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "device/cuda_api.h"
#include "device/fakes/fake_cuda.h"

namespace sluice::cuda {
namespace {

constexpr std::size_t kGranule = std::size_t{64} << 10;
constexpr Status kNotFound = 500;

struct Physical {
  int file = -1;
  std::size_t bytes = 0;
  bool ours = false;  // counts as used of this device: imported memory counts where it was made
  int handles = 0;
  int mappings = 0;
};

struct Mapping {
  std::size_t bytes = 0;
  Handle physical = 0;
};

struct Driver {
  std::mutex mutex;  // guards all below
  FakeSettings settings;
  std::int64_t calls = 0;
  std::int64_t contexts = 0;
  std::map<Pointer, std::size_t> ranges;
  std::map<Pointer, Mapping> mappings;
  std::map<Handle, Physical> physical;
  Handle next_handle = 1;
};

Driver& driver() {
  static Driver one;
  return one;
}

// Each call of the driver: counted, and refused when a test says so.
class Call {
 public:
  explicit Call(Driver& driver) : driver_(driver), lock_(driver.mutex) { ++driver_.calls; }
  [[nodiscard]] bool refused() const {
    return driver_.calls >= driver_.settings.fail_first &&
           driver_.calls <= driver_.settings.fail_last;
  }

 private:
  Driver& driver_;
  std::lock_guard<std::mutex> lock_;
};

void* host(Pointer address) {
  return reinterpret_cast<void*>(address);
}

bool inside_a_range(const Driver& d, Pointer address, std::size_t bytes) {
  auto after = d.ranges.upper_bound(address);
  if (after == d.ranges.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return address + bytes <= start + size;
}

bool overlaps_a_mapping(const Driver& d, Pointer address, std::size_t bytes) {
  const auto after = d.mappings.lower_bound(address + bytes);
  if (after == d.mappings.begin()) return false;
  const auto& [start, mapping] = *std::prev(after);
  return start + mapping.bytes > address;
}

// Memory lives as long as it has a handle or a mapping.
void drop_if_unused(Driver& d, std::map<Handle, Physical>::iterator it) {
  if (it->second.handles > 0 || it->second.mappings > 0) return;
  ::close(it->second.file);
  d.physical.erase(it);
}

std::size_t used_bytes(const Driver& d) {
  std::size_t used = d.settings.others_bytes;
  for (const auto& [handle, physical] : d.physical) used += physical.ours ? physical.bytes : 0;
  return used;
}

}  // namespace

extern "C" {

void fake_cuda_set(const FakeSettings* settings) {
  Driver& d = driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  d.settings = *settings;
  d.calls = 0;
}

void fake_cuda_count(FakeCounts* counts) {
  Driver& d = driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  *counts = {.ranges = static_cast<std::int64_t>(d.ranges.size()),
             .granules = static_cast<std::int64_t>(d.physical.size()),
             .mappings = static_cast<std::int64_t>(d.mappings.size()),
             .contexts = d.contexts,
             .calls = d.calls};
  for (const auto& [handle, physical] : d.physical) counts->handles += physical.handles;
}

Status cuInit(unsigned flags) {
  return flags == 0 ? kSuccess : kInvalidValue;
}

Status cuDriverGetVersion(int* version) {
  *version = 12040;
  return kSuccess;
}

Status cuGetErrorName(Status status, const char** name) {
  *name = status == kOutOfMemory    ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == kInvalidValue ? "CUDA_ERROR_INVALID_VALUE"
          : status == kNotFound     ? "CUDA_ERROR_NOT_FOUND"
                                    : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}

Status cuDeviceGetCount(int* count) {
  *count = 1;
  return kSuccess;
}

Status cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return ordinal == 0 ? kSuccess : kNoDevice;
}

Status cuDeviceGetName(char* name, int bytes, Device /*device*/) {
  constexpr std::string_view kName = "host memory";
  const std::size_t n = std::min(kName.size(), static_cast<std::size_t>(bytes) - 1);
  std::memcpy(name, kName.data(), n);
  name[n] = '\0';
  return kSuccess;
}

Status cuDeviceTotalMem_v2(std::size_t* bytes, Device /*device*/) {
  Driver& d = driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  *bytes = d.settings.total_bytes;
  return kSuccess;
}

Status cuDeviceGetAttribute(int* value, int attribute, Device /*device*/) {
  *value = attribute == kHasVirtualMemory || attribute == kHasFileHandles ? 1 : 0;
  return kSuccess;
}

Status cuDevicePrimaryCtxRetain(Context* context, Device /*device*/) {
  Driver& d = driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  ++d.contexts;
  *context = &d;
  return kSuccess;
}

Status cuDevicePrimaryCtxRelease_v2(Device /*device*/) {
  Driver& d = driver();
  const std::lock_guard<std::mutex> lock(d.mutex);
  --d.contexts;
  return kSuccess;
}

Status cuCtxSetCurrent(Context context) {
  const Call call(driver());
  if (call.refused()) return kNotFound;
  return context == &driver() ? kSuccess : kInvalidValue;
}

Status cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kNotFound;
  const std::size_t used = used_bytes(d);
  *total = d.settings.total_bytes;
  *free = *total > used ? *total - used : 0;
  return kSuccess;
}

Status cuMemGetAllocationGranularity(std::size_t* bytes, const Allocation* allocation,
                                     int /*option*/) {
  *bytes = kGranule;
  return allocation->type == kPinned && allocation->location.type == kOnDevice ? kSuccess
                                                                               : kInvalidValue;
}

Status cuMemAddressReserve(Pointer* address, std::size_t bytes, std::size_t alignment, Pointer wish,
                           unsigned long long flags) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kOutOfMemory;
  if (bytes == 0 || bytes % kGranule != 0 || alignment % kGranule != 0 || wish != 0 || flags != 0) {
    return kInvalidValue;
  }
  // mmap aligns to pages alone: take more, and give back what lies around it.
  const std::size_t align = std::max(alignment, kGranule);
  void* const got =
      ::mmap(nullptr, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) return kOutOfMemory;
  const auto start = reinterpret_cast<Pointer>(got);
  const Pointer aligned = (start + align - 1) / align * align;
  if (aligned > start) ::munmap(got, aligned - start);
  const Pointer end = start + bytes + align;
  if (end > aligned + bytes) ::munmap(host(aligned + bytes), end - aligned - bytes);
  d.ranges[aligned] = bytes;
  *address = aligned;
  return kSuccess;
}

Status cuMemAddressFree(Pointer address, std::size_t bytes) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kNotFound;
  const auto it = d.ranges.find(address);
  if (it == d.ranges.end() || it->second != bytes || overlaps_a_mapping(d, address, bytes)) {
    return kInvalidValue;
  }
  ::munmap(host(address), bytes);
  d.ranges.erase(it);
  return kSuccess;
}

Status cuMemCreate(Handle* handle, std::size_t bytes, const Allocation* allocation,
                   unsigned long long flags) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kOutOfMemory;
  if (bytes == 0 || bytes % kGranule != 0 || flags != 0 || allocation->type != kPinned ||
      allocation->location.type != kOnDevice) {
    return kInvalidValue;
  }
  if (used_bytes(d) + bytes > d.settings.total_bytes) return kOutOfMemory;
  const int file = ::memfd_create("fake-cuda", MFD_CLOEXEC);
  if (file < 0) return kOutOfMemory;
  if (::ftruncate(file, static_cast<off_t>(bytes)) != 0) {
    ::close(file);
    return kOutOfMemory;
  }
  *handle = d.next_handle++;
  d.physical[*handle] = {.file = file, .bytes = bytes, .ours = true, .handles = 1};
  return kSuccess;
}

Status cuMemRelease(Handle handle) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kNotFound;
  const auto it = d.physical.find(handle);
  if (it == d.physical.end() || it->second.handles == 0) return kInvalidValue;
  --it->second.handles;
  drop_if_unused(d, it);
  return kSuccess;
}

Status cuMemMap(Pointer address, std::size_t bytes, std::size_t offset, Handle handle,
                unsigned long long flags) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kOutOfMemory;
  const auto it = d.physical.find(handle);
  if (it == d.physical.end() || it->second.handles == 0 || bytes != it->second.bytes ||
      offset != 0 || flags != 0 || address % kGranule != 0 || !inside_a_range(d, address, bytes) ||
      overlaps_a_mapping(d, address, bytes)) {
    return kInvalidValue;
  }
  if (::mmap(host(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, it->second.file, 0) ==
      MAP_FAILED) {
    return kOutOfMemory;
  }
  ++it->second.mappings;
  d.mappings[address] = {.bytes = bytes, .physical = handle};
  return kSuccess;
}

Status cuMemUnmap(Pointer address, std::size_t bytes) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kNotFound;
  const auto it = d.mappings.find(address);
  if (it == d.mappings.end() || it->second.bytes != bytes) return kInvalidValue;
  if (::mmap(host(address), bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
    return kOutOfMemory;
  }
  const auto physical = d.physical.find(it->second.physical);
  d.mappings.erase(it);
  --physical->second.mappings;
  drop_if_unused(d, physical);
  return kSuccess;
}

Status cuMemSetAccess(Pointer address, std::size_t bytes, const Access* access, std::size_t count) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kOutOfMemory;
  if (count != 1 || access->flags != kReadWrite || access->location.type != kOnDevice ||
      access->location.id != 0) {
    return kInvalidValue;
  }
  for (Pointer at = address; at < address + bytes;) {  // whole mappings, without a gap
    const auto it = d.mappings.find(at);
    if (it == d.mappings.end()) return kInvalidValue;
    at += it->second.bytes;
    if (at > address + bytes) return kInvalidValue;
  }
  return ::mprotect(host(address), bytes, PROT_READ | PROT_WRITE) == 0 ? kSuccess : kOutOfMemory;
}

Status cuMemExportToShareableHandle(void* shareable, Handle handle, int type,
                                    unsigned long long flags) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kNotFound;
  const auto it = d.physical.find(handle);
  if (it == d.physical.end() || it->second.handles == 0 || type != kFileDescriptor || flags != 0) {
    return kInvalidValue;
  }
  const int copy = ::fcntl(it->second.file, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) return kOutOfMemory;
  std::memcpy(shareable, &copy, sizeof copy);
  return kSuccess;
}

Status cuMemImportFromShareableHandle(Handle* handle, void* shareable, int type) {
  Driver& d = driver();
  const Call call(d);
  if (call.refused()) return kNotFound;
  const auto descriptor = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  struct stat state {};
  if (type != kFileDescriptor || ::fstat(descriptor, &state) != 0) return kInvalidValue;
  const int file = ::fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if (file < 0) return kInvalidValue;
  *handle = d.next_handle++;
  d.physical[*handle] = {
      .file = file, .bytes = static_cast<std::size_t>(state.st_size), .handles = 1};
  return kSuccess;
}

Status cuMemcpyDtoH_v2(void* to, Pointer device, std::size_t bytes) {
  const Call call(driver());
  if (call.refused()) return kNotFound;
  std::memcpy(to, host(device), bytes);
  return kSuccess;
}

Status cuMemcpyHtoD_v2(Pointer device, const void* from, std::size_t bytes) {
  const Call call(driver());
  if (call.refused()) return kNotFound;
  std::memcpy(host(device), from, bytes);
  return kSuccess;
}

Status cuMemcpyDtoD_v2(Pointer to, Pointer from, std::size_t bytes) {
  const Call call(driver());
  if (call.refused()) return kNotFound;
  std::memcpy(host(to), host(from), bytes);
  return kSuccess;
}

Status cuMemsetD8_v2(Pointer device, unsigned char value, std::size_t bytes) {
  const Call call(driver());
  if (call.refused()) return kNotFound;
  std::memset(host(device), value, bytes);
  return kSuccess;
}

Status cuStreamSynchronize(Stream /*stream*/) {
  const Call call(driver());
  return call.refused() ? kNotFound : kSuccess;
}

}  // extern "C"

}  // namespace sluice::cuda
