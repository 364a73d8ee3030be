// Owns the KV blocks of one instance: who holds which, what is granted until
// when, and which prefixes can be shared.
//
// Belongs to the engine's loop. Block ranges of the pool at any time:
//
//   [ granted to running sequences | kept prefixes that nobody uses | free ]
//
// The first part never exceeds the capacity, and inside a window it changes
// only by admission and by release. A granted sequence never waits, moves or
// restarts for memory before the window's end; nothing that runs is evicted to
// admit something new. Both are checked in release builds.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <tl/expected.hpp>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/admission.h"
#include "memory/kv_stats.h"
#include "memory/length_forecast.h"
#include "memory/memory_policy.h"
#include "memory/step_time_model.h"
#include "memory/window_planner.h"

namespace sluice {

struct KvOptions {
  std::int32_t num_blocks = 0;
  std::int32_t first_block = 0;  // in an arena that several instances share
  bool prefix_cache = true;
  WindowOptions window;  // block_tokens is here; the policy fixes some of it
  MemoryPolicy policy = MemoryPolicy::kWindowed;
  std::uint64_t seed = 1;  // of policies that draw lengths by chance
};

// The present window, for reports, metrics and the page.
struct Window {
  std::int64_t number = 0;  // 1, 2, 3, ...
  TimePoint begin{};
  TimePoint end{};
  std::int32_t steps_left = 0;
  WindowPlan plan;
};

class KvManager final {
 public:
  explicit KvManager(const KvOptions& options);
  ~KvManager();
  KvManager(const KvManager&) = delete;
  KvManager& operator=(const KvManager&) = delete;

  // Blocks that a sequence of `tokens` tokens needs at most; it can never run
  // if this is above total_blocks.
  [[nodiscard]] std::int32_t blocks_for(std::int64_t tokens) const;

  // Admits a sequence into the present window, with blocks for all that it
  // could write until the window's end. `running` is all that was admitted and
  // not released, for the forecast; if nothing runs, whatever fits is admitted.
  // The caller renews a window that is over first, with an empty running set
  // too; if none was ever opened, admit() opens one.
  [[nodiscard]] tl::expected<Admission, Refusal> admit(const AdmissionRequest& request,
                                                       TimePoint now,
                                                       std::span<const RunningSequence> running,
                                                       const StepTimeModel& step_time,
                                                       const LengthForecast& forecast);

  // The window's time or steps are used up, or nothing was planned yet.
  [[nodiscard]] bool window_over(TimePoint now) const;
  void use_step();  // one of the window's
  // A sequence has come further than a token a step: the window ends when it comes to
  // the end of its grant, in `steps` steps from now, if that is sooner.
  void limit_steps(std::int32_t steps);

  // Derives the next window and grants it in one go; what was granted and not
  // written counts as free for it. The deferred sequences have lost no KV: the
  // caller releases the first of them (recompute) and opens again, until none
  // is left. `early`: before the old window's end, for an arrival; no sequence
  // is deferred by that which was not before. The plan leaves room for
  // `waiting_blocks`, what the next that waits would need, and for what has
  // arrived lately, where that costs the running set no more than window length.
  const Window& open_window(TimePoint now, std::span<const RunningSequence> running,
                            const StepTimeModel& step_time, const LengthForecast& forecast,
                            bool early = false, std::int64_t waiting_blocks = 0);

  [[nodiscard]] const Window& window() const;

  // The sequence's blocks in order; covers all tokens granted. Valid until the
  // next non-const call.
  [[nodiscard]] std::span<const BlockId> table(SequenceId id) const;
  // Tokens that its blocks have room for, [0, n): all it could write in this window.
  [[nodiscard]] std::int32_t granted_tokens(SequenceId id) const;

  // KV of tokens [0, tokens.size()) exists now. Full blocks become visible to
  // later requests.
  void written(SequenceId id, std::span<const Token> tokens);

  // As written(), but of what was admitted with arriving_tokens; until now it was no prefix.
  void arrived(SequenceId id, std::span<const Token> tokens);

  // The sequence has ended: its blocks are free at once, or stay as prefixes.
  void release(SequenceId id);

  // Tokens of the longest kept prefix.
  [[nodiscard]] std::int32_t cached_prefix(std::span<const Token> tokens) const;
  // Drops every prefix that nobody uses.
  void drop_prefixes();

  // What planning and mapping took; smoothed, it bounds the window's length from below.
  void set_planning_cost(Duration cost);

  [[nodiscard]] KvStats stats() const;
  [[nodiscard]] const ShortfallCounts& shortfalls() const;
  [[nodiscard]] const WindowUsage& usage() const;
  // Free + cached + granted = total, references agree. O(blocks): for tests and debug builds.
  void check_invariants() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sluice
