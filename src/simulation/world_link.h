// What World knows of the way to one node. Internal to simulation/.
#pragma once

#include <deque>
#include <memory>

#include "engine/request.h"
#include "simulation/world.h"

namespace sluice {

struct World::Link {
  struct Command {
    TimePoint due{};
    Wanted what;
    Incarnation incarnation;  // to whom, with a request
  };
  std::deque<Command> commands;  // on their way there
  TimePoint last_command{};
  TimePoint last_words{};
  TimePoint last_report{};
  TimePoint last_shared{};
  TimePoint last_mail{};
  TimePoint wake_at = TimePoint::max();
  TimePoint partitioned_until{};
  TimePoint heard_at{};
  Incarnation gone{0};     // the last one that was given up
  Incarnation replace{0};  // to be followed by a new one
};

}  // namespace sluice
