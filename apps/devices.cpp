#include <fmt/format.h>

#include "console.h"
#include "device/nvml.h"
#include "model/device.h"
#include "options.h"
#include "sizing.h"

namespace sluice {
namespace {

// What NVIDIA's driver says, with and without a backend that would use it.
void print_nvidia() {
  const auto nvml = Nvml::load();
  if (!nvml) return;  // no such driver here
  const auto loads = (*nvml)->read();
  if (!loads) {
    fmt::print("\nNVIDIA's driver does not say how busy its devices are: {}\n",
               loads.error().message);
    return;
  }
  fmt::print("\n{:<12}{:>12}{:>12}{:>8}  {}\n", "NVIDIA", "memory", "free", "busy", "what it is");
  for (std::size_t i = 0; i < loads->size(); ++i) {
    const DeviceLoad& load = (*loads)[i];
    fmt::print("{:<12}{:>12}{:>12}{:>8}  {}\n", i, format_size(load.total_bytes),
               format_size(load.free_bytes),
               load.busy_percent ? fmt::format("{} %", *load.busy_percent) : "-", load.name);
  }
}

}  // namespace

int devices() {
  start_logging("warning");
  fmt::print("{:<12}{:>12}{:>12}  {}\n", "device", "memory", "free", "what it is");
  Devices there = find_devices();
  there.devices.front().free_bytes = this_machine().available_memory;
  for (const Device& device : there.devices) {
    const bool silent = device.total_bytes == 0;
    fmt::print("{:<12}{:>12}{:>12}  {}\n", device.name,
               silent ? "-" : format_size(device.total_bytes),
               silent ? "-" : format_size(device.free_bytes), device.description);
  }
  print_nvidia();
  return 0;
}

}  // namespace sluice
