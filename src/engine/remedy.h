// What to do with a running sequence whose blocks others need now: the last rungs
// of the shortfall ladder (docs/memory.md), and the port that they use. Moving one to
// another instance takes a while, and is begun before that: Engine::next_to_yield().
//
// Of those that are possible the one with the least predicted time is taken.
// All of it belongs to the engine's loop.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"
#include "memory/host_kv.h"
#include "memory/step_time_model.h"

namespace sluice {

enum class Remedy : std::uint8_t {
  kPause,      // its KV waits in host memory
  kRecompute,  // its KV is given up, and computed again later
};

// Null: the instance has no such rung. It outlives the engine.
struct EnginePorts {
  HostKv* host = nullptr;
};

// Predicted time that each remedy costs; absent: it is not possible.
struct RemedyCosts {
  std::optional<Duration> pause;
  Duration recompute{};
};

// Of equals the one that keeps more.
[[nodiscard]] Remedy cheapest(const RemedyCosts& costs);

// Computing `tokens` tokens of KV anew, in steps of at most `step_tokens`.
[[nodiscard]] Duration recompute_cost(const StepTimeModel& step_time, std::int32_t tokens,
                                      std::int32_t step_tokens);

}  // namespace sluice
