// One life of a program, as the others of its cluster know it. Internal to net/.
#pragma once

#include <cstdint>
#include <random>

namespace sluice {

// What was here and is gone, or never was.
inline constexpr std::uint64_t kNoProcess = 2;

// Odd, so neither 0, which stands for who speaks, nor the above.
[[nodiscard]] inline std::uint64_t random_process() {
  std::random_device device;
  return (std::uint64_t{device()} << 32 | device()) | 1;
}

}  // namespace sluice
