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
    std::unique_ptr<Request> request;  // null: a cancel
    RequestId id;
    Incarnation incarnation;
  };
  std::deque<Command> commands;  // on their way there
  TimePoint last_command{};
  TimePoint last_tokens{};
  TimePoint last_report{};
  TimePoint wake_at = TimePoint::max();
  TimePoint partitioned_until{};
  TimePoint heard_at{};
  Incarnation gone{0};     // the last one that was given up
  Incarnation replace{0};  // to be followed by a new one
};

}  // namespace sluice
