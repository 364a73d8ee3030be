// A random world from a seed, and what must hold in it whatever happens.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "model/fake_model_runner.h"
#include "simulation/world.h"

namespace sluice::dst {

inline constexpr Duration kFaulty = std::chrono::seconds(40);  // of virtual time

// Strikes when a handoff is in a certain state for the n-th time.
struct Ambush {
  bool of_target = false;  // whose state it is
  std::uint8_t stage = 0;  // of HandoffStage or ArrivalStage
  std::int32_t times = 1;
  bool at_peer = false;  // the other side is struck
  bool leaves = false;   // not a fault: the client leaves
  Fault fault;           // its time and instance follow
};

// Everything about one run follows from its seed: swarm testing, in which each
// run has only some of the faults and features, and those often.
struct Plan {
  explicit Plan(std::uint64_t seed);
  [[nodiscard]] std::string describe() const;

  std::uint64_t seed = 0;
  // No fault that leaves somebody in the dark about somebody who lives on.
  [[nodiscard]] bool all_is_heard() const;

  // No instance goes, or seems to go, with what it holds.
  [[nodiscard]] bool nobody_is_lost() const;

  std::vector<FakeModelOptions> models;  // by instance; all answer alike
  Trace trace;
  WorldOptions world;
  std::vector<Ambush> ambushes;

 private:
  [[nodiscard]] bool only(std::initializer_list<FaultKind> kinds) const;
};

struct Verdict {
  std::vector<std::string> problems;  // empty: all held
  std::uint64_t hash = 0;
  double virtual_s = 0;
  std::size_t faults = 0;
  std::size_t requests = 0;
  std::size_t lost = 0;  // ended with an error, as they may when instances die
  HandoffCounts handoffs;
};

// Safety while faults strike, then liveness without any: everything ends in
// bounded time, memory comes back, ledgers and reports agree.
[[nodiscard]] Verdict check(const Plan& plan);

}  // namespace sluice::dst
