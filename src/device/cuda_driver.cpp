#include "device/cuda_driver.h"

#include <fmt/format.h>

#include <array>
#include <utility>

namespace sluice {
namespace {

Status bind_all(const SharedLibrary& library, cuda::Api& api) {
  TRY_STATUS(library.bind("cuInit", api.init));
  TRY_STATUS(library.bind("cuDriverGetVersion", api.driver_version));
  TRY_STATUS(library.bind("cuGetErrorName", api.error_name));
  TRY_STATUS(library.bind("cuDeviceGetCount", api.device_count));
  TRY_STATUS(library.bind("cuDeviceGet", api.device_get));
  TRY_STATUS(library.bind("cuDeviceGetName", api.device_name));
  TRY_STATUS(library.bind("cuDeviceTotalMem_v2", api.device_total));
  TRY_STATUS(library.bind("cuDeviceGetAttribute", api.device_attribute));
  TRY_STATUS(library.bind("cuDevicePrimaryCtxRetain", api.context_retain));
  TRY_STATUS(library.bind("cuDevicePrimaryCtxRelease_v2", api.context_release));
  TRY_STATUS(library.bind("cuCtxSetCurrent", api.context_set));
  TRY_STATUS(library.bind("cuMemGetInfo_v2", api.memory_info));
  TRY_STATUS(library.bind("cuMemGetAllocationGranularity", api.granularity));
  TRY_STATUS(library.bind("cuMemAddressReserve", api.reserve));
  TRY_STATUS(library.bind("cuMemAddressFree", api.free_address));
  TRY_STATUS(library.bind("cuMemCreate", api.create));
  TRY_STATUS(library.bind("cuMemRelease", api.release));
  TRY_STATUS(library.bind("cuMemMap", api.map));
  TRY_STATUS(library.bind("cuMemUnmap", api.unmap));
  TRY_STATUS(library.bind("cuMemSetAccess", api.set_access));
  TRY_STATUS(library.bind("cuMemExportToShareableHandle", api.export_handle));
  TRY_STATUS(library.bind("cuMemImportFromShareableHandle", api.import_handle));
  TRY_STATUS(library.bind("cuMemcpyDtoH_v2", api.copy_to_host));
  TRY_STATUS(library.bind("cuMemcpyHtoD_v2", api.copy_to_device));
  TRY_STATUS(library.bind("cuMemcpyDtoD_v2", api.copy_on_device));
  TRY_STATUS(library.bind("cuMemsetD8_v2", api.fill));
  return library.bind("cuStreamSynchronize", api.synchronize);
}

}  // namespace

Result<std::shared_ptr<const CudaDriver>> CudaDriver::load(const std::string& file) {
  TRY(SharedLibrary library, SharedLibrary::load(file));
  std::shared_ptr<CudaDriver> driver(new CudaDriver(std::move(library)));
  TRY_STATUS(bind_all(driver->library_, driver->api_));
  TRY_STATUS(driver->check(driver->api_.init(0), "cuInit"));
  TRY_STATUS(driver->check(driver->api_.driver_version(&driver->version_), "cuDriverGetVersion"));
  return driver;
}

Status CudaDriver::check(cuda::Status status, const std::string& call) const {
  if (status == cuda::kSuccess) return {};
  const char* name = nullptr;
  if (api_.error_name(status, &name) != cuda::kSuccess || name == nullptr) name = "unknown error";
  return fail(status == cuda::kOutOfMemory ? ErrorCode::kBusy : ErrorCode::kUnavailable,
              fmt::format("{} failed: {} ({})", call, name, status));
}

Result<int> CudaDriver::num_devices() const {
  int count = 0;
  TRY_STATUS(check(api_.device_count(&count), "cuDeviceGetCount"));
  return count;
}

Result<std::unique_ptr<CudaDevice>> CudaDevice::open(std::shared_ptr<const CudaDriver> driver,
                                                     int ordinal) {
  TRY(const int count, driver->num_devices());
  if (ordinal < 0 || ordinal >= count) {
    return fail(ErrorCode::kNotFound,
                fmt::format("there is no CUDA device {}: the driver has {}", ordinal, count));
  }
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(driver), ordinal));
  TRY_STATUS(device->look());
  return device;
}

Status CudaDevice::look() {
  const cuda::Api& cu = api();
  TRY_STATUS(driver_->check(cu.device_get(&device_, ordinal_), "cuDeviceGet"));
  std::array<char, 256> name{};
  TRY_STATUS(driver_->check(cu.device_name(name.data(), static_cast<int>(name.size()) - 1, device_),
                            "cuDeviceGetName"));
  name_ = name.data();
  int maps = 0;
  int exports = 0;
  TRY_STATUS(driver_->check(cu.device_attribute(&maps, cuda::kHasVirtualMemory, device_),
                            "cuDeviceGetAttribute(102)"));
  TRY_STATUS(driver_->check(cu.device_attribute(&exports, cuda::kHasFileHandles, device_),
                            "cuDeviceGetAttribute(103)"));
  if (maps == 0) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("CUDA device {} ({}) does not map memory", ordinal_, name_));
  }
  allocation_.handle_types = exports != 0 ? cuda::kFileDescriptor : 0;
  allocation_.location.id = ordinal_;
  TRY_STATUS(driver_->check(cu.granularity(&granularity_, &allocation_, cuda::kMinimum),
                            "cuMemGetAllocationGranularity"));
  return driver_->check(cu.context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

CudaDevice::~CudaDevice() {
  if (context_ != nullptr) static_cast<void>(api().context_release(device_));
}

Status CudaDevice::make_current() const {
  return driver_->check(api().context_set(context_), "cuCtxSetCurrent");
}

Result<DeviceMemory> CudaDevice::memory() const {
  TRY_STATUS(make_current());
  DeviceMemory now;
  TRY_STATUS(driver_->check(api().memory_info(&now.free_bytes, &now.total_bytes), "cuMemGetInfo"));
  return now;
}

}  // namespace sluice
