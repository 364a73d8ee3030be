// What leaves a simulated instance, and when. Plain values.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/request.h"
#include "scheduling/placement.h"

namespace sluice {

// A request runs somewhere else now; as its new instance and its old one say.
struct RunsAt {
  RequestId request;
  std::int32_t attempt = 0;
  Placement placement;
};
using Word = std::variant<std::vector<TokenEvent>, RunsAt>;

template <class T>
struct Sent {
  TimePoint at{};   // by the sender's clock
  TimePoint due{};  // at the receiver; the world's to write
  Incarnation incarnation;
  T content;
};

}  // namespace sluice
