#include "memory/memory_policy.h"

#include <algorithm>
#include <array>

namespace sluice {
namespace {

// In the order of the enumeration.
constexpr std::array<std::string_view, 8> kNames = {"windowed",    "paged", "paged-watermark",
                                                    "reserve",     "ratio", "peak-ema",
                                                    "past-future", "oracle"};

}  // namespace

std::span<const std::string_view> memory_policy_names() {
  return kNames;
}

std::string_view name_of(MemoryPolicy policy) {
  return kNames[static_cast<std::size_t>(policy)];
}

std::optional<MemoryPolicy> memory_policy_of(std::string_view name) {
  const auto it = std::ranges::find(kNames, name);
  if (it == kNames.end()) return std::nullopt;
  return static_cast<MemoryPolicy>(it - kNames.begin());
}

WindowOptions window_options_for(MemoryPolicy policy, WindowOptions options) {
  switch (policy) {
    case MemoryPolicy::kWindowed: return options;
    case MemoryPolicy::kReserve: options.grant = GrantRule::kAll; return options;
    case MemoryPolicy::kRatio:
      options.yield = YieldOrder::kLeastGenerated;
      options.yield_room_steps = 20;
      break;
    case MemoryPolicy::kPaged:
    case MemoryPolicy::kPagedWatermark:
    case MemoryPolicy::kPeakEma:
    case MemoryPolicy::kPastFuture:
    case MemoryPolicy::kOracle: break;
  }
  options.grant = GrantRule::kPrompt;
  options.length = WindowLength::kFixed;
  options.fixed_steps = 1;
  return options;
}

}  // namespace sluice
