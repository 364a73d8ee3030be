#include <fmt/format.h>

#include "console.h"
#include "model/device.h"
#include "options.h"
#include "sizing.h"

namespace sluice {

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
  return 0;
}

}  // namespace sluice
