// The guarantees of KvManager over random worlds and over all small ones. Every
// operation of KvWorld is followed by its checks: conservation, grants that
// cover all that could be written, KV that is what was computed.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "memory/kv_world.h"

namespace sluice {
namespace {

struct RandomWorld {
  explicit RandomWorld(std::uint64_t seed, MemoryPolicy policy = MemoryPolicy::kWindowed)
      : rng(seed), world(options(policy)) {
    for (int i = below(60); i > 0; --i) world.forecast.observe(1 + below(30), below(4) == 0);
    if (below(4) == 0) world.forecast_nothing();  // worlds where shortfalls are common
    end_share = below(20) / 100.0;
  }

  std::int32_t below(std::uint64_t n) { return static_cast<std::int32_t>(rng.below(n)); }

  KvOptions options(MemoryPolicy policy) {
    KvOptions options;
    options.policy = policy;
    options.num_blocks = 2 + below(below(2) == 0 ? 10 : 60);
    options.prefix_cache = below(5) != 0;
    options.window.block_tokens = 1 + below(6);
    options.window.step_token_budget = 4 + below(20);
    options.window.min_steps = 1 + below(6);
    options.window.max_steps = options.window.min_steps + below(12);
    options.window.hold_up = std::chrono::seconds(3 * below(3));
    return options;
  }

  // From few stems, so that prefixes are shared in full, in part and not at all.
  std::vector<Token> prompt() {
    std::vector<Token> tokens(static_cast<std::size_t>(1 + below(24)));
    const Token stem = below(2);
    const auto fork = static_cast<std::size_t>(below(24));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = i < fork ? stem * 100 + static_cast<Token>(i) : below(3);
    }
    return tokens;
  }

  void arrive() {
    if (world.running.size() >= static_cast<std::size_t>(world.options_.window.step_token_budget)) {
      return;
    }
    std::vector<Token> tokens = prompt();
    const std::int32_t cap = 1 + below(30);
    // What can never fit is refused before it comes here.
    const auto most = static_cast<std::int64_t>(tokens.size()) + cap;
    if (world.manager.blocks_for(most) > world.options_.num_blocks) return;
    const bool alone = world.running.empty();
    const bool admitted = world.admit(std::move(tokens), cap, below(3) - 1);
    if (alone) {
      EXPECT_TRUE(admitted) << "alone, it fits";
    }
  }

  void step() {
    world.renew_if_over();
    if (below(2) == 0) arrive();
    if (world.running.empty()) return;
    world.step(
        static_cast<std::size_t>(below(8)), [this](const KvWorld::Sequence&) { return below(3); },
        [this](const KvWorld::Sequence&) { return guesses > 0 ? below(guesses) : 0; });
    world.remove_capped();
    for (std::size_t i = 0; i < world.running.size();) {  // ends by itself, or its client leaves
      if (rng.uniform() >= end_share) {
        ++i;
        continue;
      }
      const auto& ended = world.running[i].view;
      world.forecast.observe(ended.generated, below(2) == 0);
      world.remove(ended.id);
    }
  }

  void run(int operations) {
    for (int i = 0; i < operations && !testing::Test::HasFailure(); ++i) {
      switch (below(12)) {
        case 0: world.open(/*early=*/!world.manager.window_over(world.now)); break;
        case 1: arrive(); break;
        case 2:
          if (below(10) == 0) world.manager.drop_prefixes();
          break;
        case 3: world.now += Duration(below(3) * 1'000'000); break;
        default: step();
      }
    }
  }

  Rng rng;
  KvWorld world;
  double end_share = 0;
  std::uint64_t guesses = 0;  // a sequence writes fewer than so many ahead
};

TEST(KvManagerWorlds, GuaranteesHoldInRandomOnes) {
  std::int64_t restarts = 0;
  std::int64_t hits = 0;
  std::int64_t evictions = 0;
  ShortfallCounts sum;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    RandomWorld random(seed);
    random.guesses = seed % 3 == 0 ? 8 : 0;
    random.run(150);
    ASSERT_FALSE(testing::Test::HasFailure());
    restarts += random.world.restarts;
    hits += random.world.manager.stats().prefix_hits;
    evictions += random.world.manager.stats().prefix_evictions;
    sum.refused_window += random.world.manager.shortfalls().refused_window;
    sum.refused_forecast += random.world.manager.shortfalls().refused_forecast;
    sum.windows_shortened += random.world.manager.shortfalls().windows_shortened;
    // At the end all is given back.
    while (!random.world.running.empty()) random.world.remove(random.world.running[0].view.id);
    random.world.manager.drop_prefixes();
    EXPECT_EQ(random.world.manager.stats().free_blocks, random.world.options_.num_blocks);
  }
  // The worlds are tight enough to have met every case.
  EXPECT_GT(restarts, 10);
  EXPECT_GT(hits, 1000);
  EXPECT_GT(evictions, 100);
  EXPECT_GT(sum.refused_window, 100);
  EXPECT_GT(sum.refused_forecast, 100);
  EXPECT_GT(sum.windows_shortened, 100);
}

TEST(KvManagerWorlds, GuaranteesHoldUnderEveryPolicy) {
  for (const std::string_view name : memory_policy_names()) {
    std::int64_t refused = 0;
    std::int64_t restarts = 0;
    for (std::uint64_t seed = 0; seed < 60; ++seed) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      RandomWorld random(seed, *memory_policy_of(name));
      random.run(150);
      ASSERT_FALSE(testing::Test::HasFailure());
      refused += random.world.manager.shortfalls().refused_window +
                 random.world.manager.shortfalls().refused_forecast;
      restarts += random.world.restarts;
      while (!random.world.running.empty()) random.world.remove(random.world.running[0].view.id);
      random.world.manager.drop_prefixes();
      EXPECT_EQ(random.world.manager.stats().free_blocks, random.world.options_.num_blocks);
    }
    EXPECT_GT(refused, 50) << name;
    if (name == "reserve") {
      EXPECT_EQ(restarts, 0);
    }
    if (name.starts_with("paged")) {
      EXPECT_GT(restarts, 10) << name;
    }
  }
}

TEST(KvManagerWorlds, EqualSeedsGiveEqualTables) {
  for (std::uint64_t seed = 500; seed < 540; ++seed) {
    const auto policy = static_cast<MemoryPolicy>(seed % memory_policy_names().size());
    RandomWorld a(seed, policy);
    RandomWorld b(seed, policy);
    a.run(200);
    b.run(200);
    ASSERT_EQ(a.world.running.size(), b.world.running.size());
    for (std::size_t i = 0; i < a.world.running.size(); ++i) {
      const SequenceId id = a.world.running[i].view.id;
      ASSERT_EQ(id, b.world.running[i].view.id);
      const auto left = a.world.manager.table(id);
      const auto right = b.world.manager.table(id);
      EXPECT_TRUE(std::equal(left.begin(), left.end(), right.begin(), right.end()));
    }
  }
}

// Six kinds of operations; `code` says in which order.
void run_small_world(const KvOptions& options, int code, int length) {
  constexpr int kKinds = 6;
  const std::vector<Token> same{1, 1, 1};
  const std::vector<Token> other{1, 2};
  KvWorld world(options);
  int left = code;
  for (int i = 0; i < length; ++i, left /= kKinds) {
    switch (left % kKinds) {
      case 0: world.admit(same, 2); break;
      case 1: world.admit(other, 3); break;
      case 2:
        world.renew_if_over();
        if (!world.running.empty()) {
          world.step(0, [](const KvWorld::Sequence&) { return 1; });
          world.remove_capped();
        }
        break;
      case 3: world.open(/*early=*/!world.manager.window_over(world.now)); break;
      case 4:
        if (!world.running.empty()) world.remove(world.running.front().view.id);
        break;
      default:
        if (!world.running.empty()) world.remove(world.running.back().view.id);
    }
    ASSERT_FALSE(testing::Test::HasFailure()) << "world " << code << ", operation " << i;
  }
}

// All worlds of 3 blocks of 2 tokens and 6 operations; under others' policies, 5.
TEST(KvManagerWorlds, GuaranteesHoldInAllSmallOnes) {
  for (const std::string_view name : memory_policy_names()) {
    SCOPED_TRACE(name);
    KvOptions options;
    options.policy = *memory_policy_of(name);
    options.num_blocks = 3;
    options.window.block_tokens = 2;
    options.window.step_token_budget = 3;
    options.window.min_steps = 1;
    options.window.max_steps = 3;
    const int length = options.policy == MemoryPolicy::kWindowed ? 6 : 5;
    const int worlds = static_cast<int>(std::pow(6, length));
    for (int code = 0; code < worlds; ++code) {
      run_small_world(options, code, length);
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  }
}

}  // namespace
}  // namespace sluice
