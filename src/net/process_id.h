// One life of a program, as the others of its cluster know it. Internal to net/.
#pragma once

#include <cstdint>
#include <random>

namespace sluice {

// Never 0.
[[nodiscard]] inline std::uint64_t random_process() {
  std::random_device device;
  return (std::uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace sluice
