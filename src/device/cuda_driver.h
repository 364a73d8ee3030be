// The CUDA driver and a device of it, where a machine has them: one binary runs with and without.
//
// A CudaDriver is the loaded library and its functions. A CudaDevice holds the device's primary
// context, which ggml's CUDA backend uses as well, for as long as it lives; it may be used by any
// thread, after make_current() on that thread. Errors name the call, the driver's own name of what
// happened, and the numbers. kBusy: out of device memory; kUnavailable: everything else.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "device/cuda_api.h"
#include "device/shared_library.h"

namespace sluice {

inline constexpr const char* kCudaLibrary = "libcuda.so.1";

class CudaDriver final {
 public:
  // kNotFound: no such library, or an older one without what is called; kUnavailable: it does
  // not start.
  [[nodiscard]] static Result<std::shared_ptr<const CudaDriver>> load(
      const std::string& file = kCudaLibrary);

  [[nodiscard]] const cuda::Api& api() const { return api_; }
  [[nodiscard]] const SharedLibrary& library() const { return library_; }
  // As 12040 for 12.4.
  [[nodiscard]] int version() const { return version_; }
  [[nodiscard]] Result<int> num_devices() const;
  // The result of a call, in words.
  [[nodiscard]] Status check(cuda::Status status, const std::string& call) const;

 private:
  explicit CudaDriver(SharedLibrary library) : library_(std::move(library)) {}

  SharedLibrary library_;
  cuda::Api api_{};
  int version_ = 0;
};

struct DeviceMemory {
  std::size_t free_bytes = 0;  // now, for all processes
  std::size_t total_bytes = 0;
};

class CudaDevice final {
 public:
  // kNotFound: there are fewer; kUnavailable: it cannot map memory.
  [[nodiscard]] static Result<std::unique_ptr<CudaDevice>> open(
      std::shared_ptr<const CudaDriver> driver, int ordinal);
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;
  ~CudaDevice();

  [[nodiscard]] Status make_current() const;
  [[nodiscard]] Result<DeviceMemory> memory() const;

  [[nodiscard]] const CudaDriver& driver() const { return *driver_; }
  [[nodiscard]] const cuda::Api& api() const { return driver_->api(); }
  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::size_t granularity() const { return granularity_; }  // of mappings, bytes
  // What memory is made of here.
  [[nodiscard]] const cuda::Allocation& allocation() const { return allocation_; }

 private:
  CudaDevice(std::shared_ptr<const CudaDriver> driver, int ordinal)
      : driver_(std::move(driver)), ordinal_(ordinal) {}
  [[nodiscard]] Status look();

  const std::shared_ptr<const CudaDriver> driver_;
  const int ordinal_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  std::string name_;
  std::size_t granularity_ = 0;
  cuda::Allocation allocation_;
};

}  // namespace sluice
