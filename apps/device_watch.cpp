#include "device_watch.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <utility>
#include <vector>

#include "device/nvml.h"
#include "net/thread_name.h"
#include "sizing.h"

namespace sluice {
namespace {

constexpr std::chrono::seconds kInterval{1};

DeviceGauge::Reading of_machine() {
  const Machine machine = this_machine();
  return {.total_bytes = static_cast<std::int64_t>(machine.total_memory),
          .free_bytes = static_cast<std::int64_t>(machine.available_memory),
          .busy = {}};
}

}  // namespace

class DeviceWatch::Source {
 public:
  explicit Source(Device device) : device_(std::move(device)) {
    if (device_.pci.empty()) return;
    if (auto nvml = Nvml::load()) nvml_ = std::move(*nvml);
  }

  Reading read() {
    if (device_.is_cpu()) return of_machine();
    if (auto told = of_nvml()) return *told;
    const Result<Device> now = choose_device(device_.name, find_devices());
    if (!now) return {};
    return {.total_bytes = static_cast<std::int64_t>(now->total_bytes),
            .free_bytes = static_cast<std::int64_t>(now->free_bytes),
            .busy = {}};
  }

 private:
  std::optional<Reading> of_nvml() {
    if (nvml_ == nullptr) return std::nullopt;
    const Result<std::vector<DeviceLoad>> loads = nvml_->read();
    if (!loads) {
      spdlog::warn("the load of {} is no longer known: {}", device_.name, loads.error().message);
      nvml_.reset();
      return std::nullopt;
    }
    const DeviceLoad* load = device_at(device_.pci, *loads);
    if (load == nullptr) return std::nullopt;  // another maker's
    Reading reading{.total_bytes = static_cast<std::int64_t>(load->total_bytes),
                    .free_bytes = static_cast<std::int64_t>(load->free_bytes),
                    .busy = {}};
    if (load->busy_percent) reading.busy = *load->busy_percent / 100.0;
    return reading;
  }

  const Device device_;
  std::unique_ptr<Nvml> nvml_;  // or null
};

DeviceWatch::DeviceWatch(Device device)
    : source_(std::make_unique<Source>(std::move(device))), last_(source_->read()) {
  thread_ = std::thread([this] { run(); });
}

DeviceWatch::~DeviceWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  ended_.notify_all();
  thread_.join();
}

DeviceGauge::Reading DeviceWatch::read() const {
  const std::lock_guard lock(mutex_);
  return last_;
}

void DeviceWatch::run() {
  set_thread_name("device");
  std::unique_lock lock(mutex_);
  while (!ended_.wait_for(lock, kInterval, [this] { return ending_; })) {
    lock.unlock();
    Reading now = source_->read();
    lock.lock();
    last_ = now;
  }
}

}  // namespace sluice
