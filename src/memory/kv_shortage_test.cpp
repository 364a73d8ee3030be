// Memory that ends too early: the same requests in pools of every size, so that
// for every n the n-th block is the one that is not there; and sequences that are
// cancelled in each state. Under every policy nothing is lost and all get through.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/rng.h"
#include "memory/kv_world.h"

namespace sluice {
namespace {

constexpr std::int32_t kCap = 12;

KvOptions tight(MemoryPolicy policy, std::int32_t blocks, bool prefix_cache) {
  KvOptions options{.num_blocks = blocks, .prefix_cache = prefix_cache, .policy = policy};
  options.window = {.block_tokens = 3, .step_token_budget = 8, .min_steps = 2, .max_steps = 6};
  return options;
}

std::vector<std::vector<Token>> prompts() {
  Rng rng(11);
  std::vector<std::vector<Token>> prompts(10);
  for (auto& prompt : prompts) {
    prompt.resize(1 + rng.below(20));
    for (std::size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = i < 6 ? static_cast<Token>(i) : static_cast<Token>(rng.below(3));
    }
  }
  return prompts;
}

// A sequence that yields starts anew, as a request: what it generated does not
// count here, only that everything ends.
struct Queue {
  std::deque<std::vector<Token>> waiting;
  std::size_t finished = 0;
};

void run_to_the_end(KvWorld& world, Queue& queue, const std::string& what) {
  for (int step = 0; step < 3000; ++step) {
    if (queue.waiting.empty() && world.running.empty()) return;
    if (testing::Test::HasFailure()) return;
    const std::vector<KvWorld::Sequence> before = world.running;
    world.renew_if_over();
    for (const KvWorld::Sequence& s : before) {  // who had to yield
      const bool runs = std::ranges::any_of(world.running, [&s](const KvWorld::Sequence& other) {
        return other.view.id == s.view.id;
      });
      if (runs) continue;
      const auto prompt =
          s.tokens.begin() + static_cast<std::ptrdiff_t>(s.tokens.size()) - s.view.generated;
      queue.waiting.emplace_front(s.tokens.begin(), prompt);
    }
    while (!queue.waiting.empty() && world.running.size() < 8) {
      if (!world.admit(queue.waiting.front(), kCap)) break;
      queue.waiting.pop_front();
    }
    ASSERT_FALSE(world.running.empty()) << what << ": nobody runs and somebody waits";
    const std::size_t ran = world.running.size();
    world.step(static_cast<std::size_t>(step % 3), [](const KvWorld::Sequence&) { return 1; });
    world.remove_capped();
    queue.finished += ran - world.running.size();
  }
  FAIL() << what << ": it does not end";
}

TEST(KvShortage, WhereverMemoryEndsAllGetThrough) {
  for (const std::string_view name : memory_policy_names()) {
    for (const bool prefix_cache : {false, true}) {
      std::int64_t restarts = 0;
      for (std::int32_t blocks = 11; blocks <= 110; ++blocks) {  // 20 + 12 tokens need 11
        const std::string what = std::string(name) + ", " + std::to_string(blocks) + " blocks";
        KvWorld world(tight(*memory_policy_of(name), blocks, prefix_cache));
        const auto all = prompts();
        Queue queue{.waiting = {all.begin(), all.end()}};
        run_to_the_end(world, queue, what);
        ASSERT_FALSE(testing::Test::HasFailure()) << what;
        EXPECT_EQ(queue.finished, all.size()) << what;
        world.manager.drop_prefixes();
        EXPECT_EQ(world.manager.stats().free_blocks, blocks) << what;
        EXPECT_EQ(world.manager.stats().unfilled_tokens, 0) << what;
        restarts += world.restarts;
      }
      if (name == "reserve") {
        EXPECT_EQ(restarts, 0) << name;
      }
      if (name == "paged") {
        EXPECT_GT(restarts, 10);
      }
    }
  }
}

// In each world one sequence is cancelled after each number of operations: as it
// waits for nothing yet, in the middle of its prompt, while it decodes, deferred.
TEST(KvShortage, CancelledInEveryStateNothingIsLost) {
  for (const std::string_view name : memory_policy_names()) {
    for (int after = 0; after < 40; ++after) {
      KvWorld world(tight(*memory_policy_of(name), 24, after % 2 == 0));
      const auto all = prompts();
      Queue queue{.waiting = {all.begin(), all.begin() + 6}};
      for (int step = 0; step < after && !testing::Test::HasFailure(); ++step) {
        if (world.manager.window_over(world.now)) {
          const Window& window =
              world.manager.open_window(world.now, world.views(), world.step_time, world.forecast);
          if (!window.plan.deferred.empty()) {  // and that is when its client leaves
            const SequenceId victim = window.plan.deferred.back();
            world.remove(victim);
          }
          world.renew_if_over();
        }
        while (!queue.waiting.empty() && world.admit(queue.waiting.front(), kCap)) {
          queue.waiting.pop_front();
        }
        if (world.running.empty()) break;
        if (!world.manager.window().plan.deferred.empty()) world.open(false);
        world.step(0, [](const KvWorld::Sequence&) { return 2; });
        world.remove_capped();
      }
      while (!world.running.empty()) {
        const auto which = static_cast<std::size_t>(after) % world.running.size();
        world.remove(world.running[which].view.id);
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << name << " after " << after;
      world.manager.drop_prefixes();
      EXPECT_EQ(world.manager.stats().free_blocks, 24) << name << " after " << after;
    }
  }
}

}  // namespace
}  // namespace sluice
