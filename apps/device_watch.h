// Looks at a device once a second, on a thread of its own, so that load reports can say how full
// and how busy it is: NVML where the device is one of NVIDIA's, else what its backend says of its
// memory, and the machine's for the CPU.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "model/device.h"
#include "net/device_gauge.h"

namespace sluice {

class DeviceWatch final : public DeviceGauge {
 public:
  // `device` was found here; the first look is taken before this returns.
  explicit DeviceWatch(Device device);
  ~DeviceWatch() override;
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  [[nodiscard]] Reading read() const override;

 private:
  class Source;

  void run();

  const std::unique_ptr<Source> source_;  // of the thread, once it runs
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool ending_ = false;
  Reading last_;
  std::thread thread_;
};

}  // namespace sluice
