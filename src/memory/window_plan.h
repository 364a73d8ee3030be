// What a window is planned from, and the plan: plain values. Blocks are counted
// as of the moment of planning.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/hidden_length.h"
#include "memory/length_forecast.h"

namespace sluice {

// One running sequence as the planner sees it. Tokens.
struct RunningSequence {
  SequenceId id;
  std::int32_t held_tokens = 0;   // KV that exists now
  std::int32_t held_blocks = 0;   // blocks in its table now, shared ones included
  std::int32_t prefill_left = 0;  // known tokens whose KV is still to be computed
  std::int32_t generated = 0;     // output tokens so far: the age for the forecast
  std::int32_t decode_cap = 0;    // at most this many will still be generated
  std::int32_t priority = 0;      // higher is granted first; equal: the earlier in the span
  LengthClass length_class = kAnyLength;
  HiddenLength true_length{};  // benchmarks: for the oracle alone
};

struct Grant {
  SequenceId id;
  std::int32_t until_tokens = 0;  // may hold KV of tokens [0, until_tokens) in this window
  std::int32_t new_blocks = 0;    // beyond those it holds
};

// Which of the bounds fixed the length.
enum class WindowBound : std::uint8_t {
  kCompletion,
  kOverhead,  // or min_steps
  kUnused,
  kCapacity,
  kMaximum,  // max_steps or max_length
  kIdle,
};

// Likely demand at one future window end: what the load report states.
struct Outlook {
  Duration after{};                // from the plan's begin
  std::int64_t demand_blocks = 0;  // of those likely to run then, at `z` deviations from
                                   // the mean, with what a short next window needs
};

struct WindowPlan {
  Duration length{};
  std::int32_t steps = 0;          // >= 1; the window ends at its time or when these are used up
  std::vector<Grant> grants;       // in the order of `running`, without the deferred
  std::int64_t demand_blocks = 0;  // sum of Grant::new_blocks: allocated at once
  std::int64_t room_blocks = 0;    // not granted: for what arrives inside the window
  std::int64_t wanted_room_blocks = 0;  // what is likely to arrive
  // Not even one step fits. In the order in which they should yield: lowest
  // priority and latest first, those whose room would let all others run; then
  // those that only wait for that room.
  std::vector<SequenceId> deferred;
  WindowBound bound = WindowBound::kIdle;
  std::vector<Outlook> outlook;  // this window's end first, then later ones, further and further
  std::int64_t peak_blocks = 0;  // likely peak over the outlook, tables included
};

struct PlanInput {
  std::span<const RunningSequence> running;  // in the order of admission
  std::int64_t free_blocks = 0;              // free now, unused prefix blocks included
  std::int64_t total_blocks = 0;
  Duration planning_cost{};        // what planning and mapping took lately
  std::int64_t shared_blocks = 0;  // counted more than once in held_blocks
  double z = 1.3;                  // deviations from the mean that the outlook states
  std::int32_t least_steps = 1;    // somebody yields unless so many fit
  // What arrivals are likely to need: the next that waits, and those to come.
  std::int64_t waiting_blocks = 0;
  double arriving_blocks_a_second = 0;
};

struct OutlookInput {
  std::span<const RunningSequence> running;
  const RunningSequence* arrival = nullptr;  // one more, or none
  std::int32_t first_steps = 0;              // to this window's end
  std::int32_t window_steps = 1;             // of those after it
  std::int64_t shared_blocks = 0;
  double z = 1.3;
};

}  // namespace sluice
