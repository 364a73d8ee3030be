// A random world from a seed, and what must hold in it whatever happens.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/fake_model_runner.h"
#include "simulation/world.h"

namespace sluice::dst {

// Everything about one run follows from its seed: swarm testing, in which each
// run has only some of the faults and features, and those often.
struct Plan {
  explicit Plan(std::uint64_t seed);
  [[nodiscard]] std::string describe() const;

  std::uint64_t seed = 0;
  FakeModelOptions model;
  Trace trace;
  WorldOptions world;
};

struct Verdict {
  std::vector<std::string> problems;  // empty: all held
  std::uint64_t hash = 0;
  double virtual_s = 0;
  std::size_t faults = 0;
  std::size_t requests = 0;
  std::size_t lost = 0;  // ended with an error, as they may when instances die
};

// Safety while faults strike, then liveness without any: everything ends in
// bounded time, memory comes back, ledgers and reports agree.
[[nodiscard]] Verdict check(const Plan& plan);

}  // namespace sluice::dst
