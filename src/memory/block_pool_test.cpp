#include "memory/block_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"

namespace sluice {
namespace {

std::vector<std::int32_t> values(const std::vector<BlockId>& blocks) {
  std::vector<std::int32_t> values;
  for (const BlockId block : blocks) values.push_back(block.value);
  return values;
}

void give_back(BlockPool& pool, BlockId block) {
  ASSERT_TRUE(pool.unref(block));
  pool.free(block);
}

TEST(BlockPool, LowestFirstAndNeighboursPreferred) {
  BlockPool pool(200);
  std::vector<BlockId> a;
  std::vector<BlockId> b;
  pool.allocate(2, a);
  pool.allocate(1, b);
  pool.allocate(1, a);  // 2 is taken, so the lowest free one
  EXPECT_EQ(values(a), (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(values(b), (std::vector<std::int32_t>{2}));
  give_back(pool, a[0]);
  pool.allocate(1, a);  // 4 follows 3, though 0 is free
  EXPECT_EQ(a.back(), BlockId(4));
  pool.allocate(1, b);
  EXPECT_EQ(b.back(), BlockId(0));
  pool.allocate(195, b);
  EXPECT_EQ(pool.num_free(), 0);
  pool.check_invariants();
}

TEST(BlockPool, ReferencesKeepABlock) {
  BlockPool pool(4);
  std::vector<BlockId> table;
  pool.allocate(1, table);
  const BlockId block = table[0];
  pool.ref(block);
  EXPECT_FALSE(pool.unref(block));
  pool.mark_written(block);
  EXPECT_EQ(pool.num_written(), 1);
  EXPECT_TRUE(pool.unref(block));
  EXPECT_EQ(pool.num_kept(), 1);
  EXPECT_EQ(pool.num_written(), 0);
  pool.ref(block);  // a kept prefix is used again
  EXPECT_EQ(pool.num_used(), 1);
  EXPECT_EQ(pool.num_written(), 1);
  give_back(pool, block);
  EXPECT_EQ(pool.num_free(), 4);
  EXPECT_FALSE(pool.is_written(block));
}

TEST(BlockPoolDeathTest, MisuseStops) {
  BlockPool pool(2);
  std::vector<BlockId> table;
  EXPECT_DEATH(pool.allocate(3, table), "check failed");
  EXPECT_DEATH(pool.ref(BlockId(0)), "check failed");
  EXPECT_DEATH(pool.free(BlockId(0)), "check failed");
  EXPECT_DEATH(static_cast<void>(pool.unref(BlockId(1))), "check failed");
}

// Against a model of plain sets.
TEST(BlockPool, PropertiesOverRandomUse) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const auto size = static_cast<std::int32_t>(1 + rng.below(150));
    BlockPool pool(size);
    std::vector<BlockId> used;
    std::set<std::int32_t> kept;
    for (int op = 0; op < 300; ++op) {
      switch (rng.below(4)) {
        case 0: {
          const auto count =
              static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(pool.num_free()) + 1));
          std::vector<BlockId> fresh;
          pool.allocate(count, fresh);
          std::set<BlockId> all(used.begin(), used.end());
          for (const BlockId block : fresh) {
            EXPECT_TRUE(all.insert(block).second);
            EXPECT_FALSE(kept.contains(block.value));
            used.push_back(block);
          }
          break;
        }
        case 1:
        case 2: {
          if (used.empty()) break;
          const std::size_t i = rng.below(used.size());
          ASSERT_TRUE(pool.unref(used[i]));
          kept.insert(used[i].value);
          used.erase(used.begin() + static_cast<std::ptrdiff_t>(i));
          break;
        }
        default: {
          if (kept.empty()) break;
          pool.free(BlockId(*kept.begin()));
          kept.erase(kept.begin());
        }
      }
      pool.check_invariants();
      EXPECT_EQ(pool.num_used(), static_cast<std::int32_t>(used.size()));
      EXPECT_EQ(pool.num_kept(), static_cast<std::int32_t>(kept.size()));
    }
  }
}

}  // namespace
}  // namespace sluice
