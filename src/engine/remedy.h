// What to do with a running sequence whose blocks others need now: the last rungs
// of the shortfall ladder (docs/memory.md), and the ports that they use.
//
// Of those that are possible the one with the least predicted time is taken.
// All of it belongs to the engine's loop.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/time.h"
#include "memory/host_kv.h"
#include "memory/step_time_model.h"

namespace sluice {

struct Sequence;

enum class Remedy : std::uint8_t {
  kMove,       // it goes on at another instance
  kPause,      // its KV waits in host memory
  kRecompute,  // its KV is given up, and computed again later
};

// Where an instance can send a sequence that it has no room for.
class SequenceMover {
 public:
  virtual ~SequenceMover() = default;

  // How long until it would go on elsewhere; nullopt: nobody has room for it.
  [[nodiscard]] virtual std::optional<Duration> predict(const Sequence& sequence) = 0;

  // Takes it over, and with it the duty to end it; true leaves null behind. The
  // blocks hold KV of its first `computed` tokens and are others' when this
  // returns. False: it came to nothing, the sequence is as it was.
  [[nodiscard]] virtual bool move(std::unique_ptr<Sequence>& sequence,
                                  std::span<const BlockId> blocks) = 0;
};

// Null: the instance has no such rung. They outlive the engine.
struct EnginePorts {
  HostKv* host = nullptr;
  SequenceMover* mover = nullptr;
};

// Predicted time that each remedy costs; absent: it is not possible.
struct RemedyCosts {
  std::optional<Duration> move;
  std::optional<Duration> pause;
  Duration recompute{};
};

// Of equals the one that keeps more: move, pause, recompute.
[[nodiscard]] Remedy cheapest(const RemedyCosts& costs);

// Computing `tokens` tokens of KV anew, in steps of at most `step_tokens`.
[[nodiscard]] Duration recompute_cost(const StepTimeModel& step_time, std::int32_t tokens,
                                      std::int32_t step_tokens);

}  // namespace sluice
