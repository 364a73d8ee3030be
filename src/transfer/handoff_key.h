// One try to hand one request to one target.
#pragma once

#include <compare>
#include <cstdint>

#include "base/ids.h"

namespace sluice {

struct HandoffKey {
  RequestId request;
  std::uint32_t attempt = 0;  // grows, also from one instance to the next,
  std::int32_t life = 0;      // within one placement by its gateway: Request::attempt
  friend auto operator<=>(const HandoffKey&, const HandoffKey&) = default;
};

}  // namespace sluice
