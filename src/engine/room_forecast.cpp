#include "engine/room_forecast.h"

#include <algorithm>

namespace sluice {
namespace {

constexpr Duration kLeastWait = std::chrono::milliseconds(5);
constexpr Duration kComesWithin = std::chrono::seconds(1);  // of its time, or not at all

}  // namespace

TimePoint RoomForecast::tell(const Need& need, const Known& known, TimePoint now) {
  std::erase_if(
      told_, [&](const Told& t) { return t.request == need.request || t.at + kComesWithin < now; });
  const auto others = [this](TimePoint at) {
    std::int64_t blocks = 0;
    for (const Told& t : told_) blocks += t.at <= at ? t.blocks : 0;
    return blocks;
  };
  const auto time_of = [&](const Outlook& point) {
    return std::max(known.begin + point.after, now + kLeastWait);
  };
  const Outlook* from = nullptr;  // the earliest from which on there is room
  for (auto point = known.outlook.rbegin(); point != known.outlook.rend(); ++point) {
    const std::int64_t demand = point->demand_blocks + known.more_blocks + others(time_of(*point));
    if (demand + need.blocks > known.total_blocks) break;
    from = &*point;
  }
  if (from == nullptr) {
    return known.outlook.empty() ? now + kLeastWait : time_of(known.outlook.back());
  }
  const TimePoint at = time_of(*from);
  told_.push_back({need.request, need.blocks, at});
  return at;
}

void RoomForecast::forget(RequestId request) {
  std::erase_if(told_, [request](const Told& t) { return t.request == request; });
}

}  // namespace sluice
