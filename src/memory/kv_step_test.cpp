// What a step inside a window costs: no block is taken and no memory asked for.
// This file replaces the program's operator new by one that counts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <new>
#include <span>
#include <vector>

#include "memory/kv_manager.h"

namespace {

std::int64_t allocations = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept {
  std::free(memory);
}

namespace sluice {
namespace {

struct Counts {
  std::int64_t heap = 0;    // in steps
  std::int64_t grants = 0;  // in steps
  std::int64_t all_grants = 0;
  std::int64_t steps = 0;
  std::int64_t windows = 0;
};

// Sixteen sequences with prompts of 40 tokens run for some windows.
Counts run(const KvOptions& options) {
  KvManager manager(options);
  const StepTimeModel step_time({.base = 0.02});
  LengthForecast forecast;
  std::vector<RunningSequence> running;
  const std::vector<Token> tokens(4096, 1);
  TimePoint now{};
  manager.open_window(now, {}, step_time, forecast);
  for (std::uint64_t i = 1; i <= 16; ++i) {
    const auto prompt = std::span(tokens).first(40);
    const auto admitted = manager.admit({.id = SequenceId(i), .tokens = prompt, .decode_cap = 2000},
                                        now, running, step_time, forecast);
    EXPECT_TRUE(admitted);
    running.push_back({.id = SequenceId(i),
                       .held_tokens = admitted->cached_tokens,
                       .prefill_left = 40 - admitted->cached_tokens,
                       .decode_cap = 2000});
  }
  Counts counts;
  while (counts.windows < 12) {
    if (manager.window_over(now)) {
      manager.open_window(now, running, step_time, forecast);
      counts.windows += 1;
    }
    const std::int64_t heap = allocations;
    const std::int64_t grants = manager.usage().grants;
    manager.use_step();
    for (RunningSequence& s : running) {
      s.held_tokens += s.prefill_left;
      s.prefill_left = 1;
      s.generated += 1;
      s.decode_cap -= 1;
      EXPECT_LE(s.held_tokens, manager.granted_tokens(s.id));
      manager.written(s.id, std::span(tokens).first(static_cast<std::size_t>(s.held_tokens)));
    }
    counts.heap += allocations - heap;
    counts.grants += manager.usage().grants - grants;
    counts.steps += 1;
    now += std::chrono::milliseconds(20);
  }
  counts.all_grants = manager.usage().grants;
  return counts;
}

TEST(KvStep, TakesNoMemoryInsideAWindow) {
  const Counts counts = run({.num_blocks = 4000, .prefix_cache = false});
  EXPECT_GT(counts.steps, 100);
  EXPECT_EQ(counts.grants, 0);
  EXPECT_EQ(counts.heap, 0);
  EXPECT_GT(counts.all_grants, 16);  // all of it at boundaries and admissions
}

// Full blocks enter the index then, which has nodes of its own; KV memory is not asked for.
TEST(KvStep, TakesNoBlockInsideAWindowWithPrefixesEither) {
  const Counts counts = run({.num_blocks = 4000, .prefix_cache = true});
  EXPECT_EQ(counts.grants, 0);
  EXPECT_GT(counts.all_grants, 16);
}

// The counting itself works, and growing block by block is what it shows.
TEST(KvStep, PoliciesThatGrowBlockByBlockPlanEveryStep) {
  const Counts counts =
      run({.num_blocks = 4000, .prefix_cache = false, .policy = MemoryPolicy::kPaged});
  EXPECT_EQ(counts.steps, counts.windows + 1);  // one for the window before the first count
  const std::int64_t before = allocations;
  const std::vector<int> something(100);
  EXPECT_GT(allocations, before);
}

}  // namespace
}  // namespace sluice
