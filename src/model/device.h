// The devices that a model can run on: what this build and this machine have,
// and which of them a name means.
//
// A device is called by its backend and its number in it, "vulkan:1"; the CPU is
// "cpu" and always there. Values: free memory is what it was when it was looked.
// Which devices there are is asked in find_devices(); choosing is pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice {

struct Device {
  std::string name;             // "cpu", "vulkan:0"
  std::string description;      // the maker's words
  std::size_t total_bytes = 0;  // of its memory; 0: it does not say
  std::size_t free_bytes = 0;   // for all processes, when it was looked
  std::string pci = {};         // its address on the bus, "0000:c1:00.0"; empty: not known

  [[nodiscard]] bool is_cpu() const { return name == "cpu"; }
};

struct Devices {
  std::vector<std::string> backends;  // that this build has, "cpu" first
  std::vector<Device> devices;        // the CPU first, then as the backends number them
};

// What is there now. Loads the backends that lie beside the program, once a process.
[[nodiscard]] Devices find_devices();

// "cpu"; "vulkan", "cuda" (the first of them) or "vulkan:1"; or "auto": the device
// with most free memory beside the CPU, and the CPU where there is no other. kInvalidArgument: no
// such name, or not in this build; kNotFound: not on this machine. The message says what is there.
[[nodiscard]] Result<Device> choose_device(std::string_view wanted, const Devices& there);

}  // namespace sluice
