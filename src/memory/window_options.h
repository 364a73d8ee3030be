// How the window planner is set: blocks, bounds of a window's length, margins.
// Plain values; memory_policy.h says what each policy fixes of them.
#pragma once

#include <cstdint>

#include "base/time.h"

namespace sluice {

// How the length is chosen; all are cut by capacity. kBounded is the rule above.
enum class WindowLength : std::uint8_t {
  kBounded,
  kCompletion,  // first likely completion alone
  kMean,        // mean remaining steps of the running set
  kLongest,     // all of it likely done
  kFixed,       // fixed_steps
};

// What a sequence is granted at once.
enum class GrantRule : std::uint8_t {
  kWindow,  // all that it could write in the window
  kPrompt,  // its whole prompt, then what it could write in the window
  kAll,     // all that it could ever write
};

// Who yields first among equals in priority.
enum class YieldOrder : std::uint8_t {
  kNewest,
  kLeastGenerated,  // then the longest prompt
};

struct WindowOptions {
  std::int32_t block_tokens = 16;
  std::int32_t step_token_budget = 512;  // most tokens a step computes
  std::int32_t min_steps = 8;            // yields to capacity
  std::int32_t max_steps = 64;
  Duration max_length = std::chrono::seconds(5);
  double completion_quantile = 0.1;  // "likely": a completion's duration at this quantile
  double overhead_share = 0.005;     // planning and mapping may take this share of the window
  double unused_share = 0.03;        // blocks granted but not yet written, of the pool
  // A shortfall that holds an answer up so long is risked for few; for more, the shorter it is.
  Duration hold_up = std::chrono::seconds(3);
  std::int32_t outlook_windows = 8;  // points of the outlook, at most 8
  WindowLength length = WindowLength::kBounded;
  std::int32_t fixed_steps = 16;
  GrantRule grant = GrantRule::kWindow;
  YieldOrder yield = YieldOrder::kNewest;
  std::int32_t yield_room_steps = 1;  // once somebody yields, until so many steps fit
};

}  // namespace sluice
