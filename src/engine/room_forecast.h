// When a sequence that finds no room now is likely to find it (CN119512748A: decode
// admission is answered in time).
//
// Room is from the first point of the outlook on from which every later one has it too:
// whoever comes stays, so a peak that is still to come counts. What others were told counts
// as well, from their time on: ten that ask for the same hole are given ten times, and do not
// come back together for one to get it.
//
// Belongs to the engine's loop. A word is kept by nobody: who asks first when there is room
// gets it. It ends when who was told asks again, or does not within a second.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/window_plan.h"

namespace sluice {

class RoomForecast final {
 public:
  struct Need {
    RequestId request;
    std::int64_t blocks = 0;
  };
  // What is known of the instance's memory: demand at `begin` + Outlook::after, ascending, with
  // `more_blocks` added to all of it.
  struct Known {
    TimePoint begin{};
    std::span<const Outlook> outlook;
    std::int64_t more_blocks = 0;
    std::int64_t total_blocks = 0;
  };

  // When to ask again: a time after `now`; the outlook's end, where it never has room.
  [[nodiscard]] TimePoint tell(const Need& need, const Known& known, TimePoint now);
  // It asks again, came, or is gone.
  void forget(RequestId request);

 private:
  struct Told {
    RequestId request;
    std::int64_t blocks = 0;
    TimePoint at{};
  };
  std::vector<Told> told_;  // as told; few
};

}  // namespace sluice
