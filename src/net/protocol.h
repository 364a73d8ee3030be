// What both ends of a cluster's streams agree on. Internal to net/.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sluice {

inline constexpr std::uint32_t kProtocol = 1;
inline constexpr std::size_t kMaxName = 128;        // bytes of an instance's name
inline constexpr int kMaxMessageBytes = 128 << 20;  // twice what may gather for a slow peer

}  // namespace sluice
