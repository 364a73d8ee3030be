// How busy NVIDIA's devices are, as their management library (libnvidia-ml.so.1) says: loaded at
// run time, so that one binary runs with and without it.
//
// Any thread, one at a time; a reading takes about a millisecond a device. Its numbers are of all
// processes, and its order that of the PCI bus, which need not be CUDA's.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice {

inline constexpr const char* kNvmlLibrary = "libnvidia-ml.so.1";

struct DeviceLoad {
  std::string name;
  std::string pci;  // address on the bus, "0000:c1:00.0"
  std::size_t total_bytes = 0;
  std::size_t used_bytes = 0;
  std::size_t free_bytes = 0;
  // Per cent of the last moments in which a kernel ran; none: the device does not tell.
  std::optional<int> busy_percent;
};

// The one at this address, or null.
[[nodiscard]] const DeviceLoad* device_at(const std::string& pci,
                                          const std::vector<DeviceLoad>& devices);

class Nvml {
 public:
  // kNotFound: no such library, or without what is called; kUnavailable: it does not start.
  [[nodiscard]] static Result<std::unique_ptr<Nvml>> load(const std::string& file = kNvmlLibrary);
  virtual ~Nvml() = default;

  // kUnavailable: a device is lost; the message says which and why.
  [[nodiscard]] virtual Result<std::vector<DeviceLoad>> read() const = 0;
};

}  // namespace sluice
