#include "device/nvml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "device/nvml_api.h"
#include "device/shared_library.h"

namespace sluice {
namespace {

class LoadedNvml final : public Nvml {
 public:
  explicit LoadedNvml(SharedLibrary library) : library_(std::move(library)) {}
  LoadedNvml(const LoadedNvml&) = delete;
  LoadedNvml& operator=(const LoadedNvml&) = delete;
  ~LoadedNvml() override {
    if (started_) static_cast<void>(api_.shutdown());
  }

  Status start() {
    TRY_STATUS(library_.bind("nvmlInit_v2", api_.init));
    TRY_STATUS(library_.bind("nvmlShutdown", api_.shutdown));
    TRY_STATUS(library_.bind("nvmlErrorString", api_.error_string));
    TRY_STATUS(library_.bind("nvmlDeviceGetCount_v2", api_.device_count));
    TRY_STATUS(library_.bind("nvmlDeviceGetHandleByIndex_v2", api_.device_by_index));
    TRY_STATUS(library_.bind("nvmlDeviceGetName", api_.device_name));
    TRY_STATUS(library_.bind("nvmlDeviceGetPciInfo_v3", api_.pci));
    TRY_STATUS(library_.bind("nvmlDeviceGetMemoryInfo", api_.memory));
    TRY_STATUS(library_.bind("nvmlDeviceGetUtilizationRates", api_.utilization));
    TRY_STATUS(check(api_.init(), "nvmlInit"));
    started_ = true;
    return {};
  }

  Result<std::vector<DeviceLoad>> read() const override {
    unsigned count = 0;
    TRY_STATUS(check(api_.device_count(&count), "nvmlDeviceGetCount"));
    std::vector<DeviceLoad> devices;
    for (unsigned i = 0; i < count; ++i) {
      TRY(DeviceLoad device, read(i));
      devices.push_back(std::move(device));
    }
    return devices;
  }

 private:
  Status check(nvml::Status status, const std::string& call) const {
    if (status == nvml::kSuccess) return {};
    const char* words = api_.error_string(status);
    return fail(ErrorCode::kUnavailable, fmt::format("{} failed: {} ({})", call,
                                                     words == nullptr ? "unknown" : words, status));
  }

  Result<DeviceLoad> read(unsigned index) const {
    nvml::Device device = nullptr;
    TRY_STATUS(check(api_.device_by_index(index, &device),
                     fmt::format("nvmlDeviceGetHandleByIndex({})", index)));
    DeviceLoad load;
    std::array<char, 128> name{};
    TRY_STATUS(check(api_.device_name(device, name.data(), static_cast<unsigned>(name.size()) - 1),
                     fmt::format("nvmlDeviceGetName({})", index)));
    load.name = name.data();
    nvml::Pci pci;
    TRY_STATUS(check(api_.pci(device, &pci), fmt::format("nvmlDeviceGetPciInfo({})", index)));
    load.pci = fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
    nvml::Memory memory;
    TRY_STATUS(
        check(api_.memory(device, &memory), fmt::format("nvmlDeviceGetMemoryInfo({})", index)));
    load.total_bytes = memory.total;
    load.used_bytes = memory.used;
    load.free_bytes = memory.free;
    nvml::Utilization busy;
    const nvml::Status told = api_.utilization(device, &busy);
    if (told == nvml::kNotSupported) return load;  // a slice of a device, say
    TRY_STATUS(check(told, fmt::format("nvmlDeviceGetUtilizationRates({})", index)));
    load.busy_percent = static_cast<int>(busy.gpu);
    return load;
  }

  SharedLibrary library_;
  nvml::Api api_{};
  bool started_ = false;
};

}  // namespace

const DeviceLoad* device_at(const std::string& pci, const std::vector<DeviceLoad>& devices) {
  const auto found = std::find_if(devices.begin(), devices.end(), [&](const DeviceLoad& device) {
    return !pci.empty() && device.pci == pci;
  });
  return found == devices.end() ? nullptr : &*found;
}

Result<std::unique_ptr<Nvml>> Nvml::load(const std::string& file) {
  TRY(SharedLibrary library, SharedLibrary::load(file));
  auto loaded = std::make_unique<LoadedNvml>(std::move(library));
  TRY_STATUS(loaded->start());
  return loaded;
}

}  // namespace sluice
