#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "base/inbox.h"
#include "base/kv_layout.h"
#include "base/result.h"
#include "base/rng.h"
#include "base/time.h"

namespace sluice {
namespace {

TEST(KvLayout, TilesFillABlockWithoutOverlap) {
  for (const KvLayout& layout :
       {KvLayout{2, 3, 64, 64, 16}, KvLayout{1, 1, 128, 80, 8}, KvLayout{5, 2, 96, 256, 32}}) {
    std::vector<bool> used(layout.block_bytes());
    const auto take = [&](std::size_t offset, std::size_t bytes) {
      ASSERT_LE(offset + bytes, used.size());
      for (std::size_t i = offset; i < offset + bytes; ++i) {
        EXPECT_FALSE(used[i]);
        used[i] = true;
      }
    };
    for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
        take(layout.k_offset(layer, head), layout.k_tile_bytes());
        take(layout.v_offset(layer, head), layout.v_tile_bytes());
      }
    }
    EXPECT_EQ(std::count(used.begin(), used.end(), false), 0);
  }
}

TEST(KvLayout, RoundsTokensUpToBlocks) {
  const KvLayout layout{1, 1, 64, 64, 16};
  const std::vector<std::pair<std::int64_t, std::int32_t>> cases = {{0, 0},  {1, 1},  {15, 1},
                                                                    {16, 1}, {17, 2}, {160, 10}};
  for (const auto& [tokens, blocks] : cases) EXPECT_EQ(layout.blocks_for(tokens), blocks);
}

TEST(Inbox, AFullInboxIsAnAnswerAndLeavesTheItem) {
  Inbox<std::unique_ptr<int>> inbox(1);
  EXPECT_TRUE(inbox.push(std::make_unique<int>(1)));
  auto second = std::make_unique<int>(2);
  EXPECT_FALSE(inbox.push(std::move(second)));
  ASSERT_NE(second, nullptr);
  EXPECT_TRUE(inbox.push_urgent(std::move(second)));
  std::vector<std::unique_ptr<int>> out;
  inbox.drain(out);
  ASSERT_EQ(out.size(), 2U);
  EXPECT_EQ(*out[0], 1);
  EXPECT_EQ(*out[1], 2);
}

TEST(Inbox, ClosedTakesNothingAndWakesTheWaiter) {
  Inbox<int> inbox(8);
  std::vector<int> out;
  std::thread waiter([&] { inbox.wait_and_drain(out, std::chrono::hours(1)); });
  inbox.close();
  waiter.join();
  EXPECT_TRUE(out.empty());
  EXPECT_FALSE(inbox.push(1));
  EXPECT_FALSE(inbox.push_urgent(1));
}

TEST(Inbox, NothingIsLostBetweenThreads) {
  Inbox<int> inbox(1 << 20);
  constexpr int kEach = 2000;
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&inbox, w] {
      for (int i = 0; i < kEach; ++i) EXPECT_TRUE(inbox.push(w * kEach + i));
    });
  }
  std::set<int> seen;
  std::vector<int> out;
  while (seen.size() < 4 * kEach) {
    inbox.wait_and_drain(out, std::chrono::seconds(10));
    ASSERT_FALSE(out.empty());
    seen.insert(out.begin(), out.end());
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(*seen.rbegin(), 4 * kEach - 1);
}

TEST(Rng, EqualSeedsAreEqualAndBoundsHold) {
  Rng a(7);
  Rng b(7);
  Rng other(8);
  bool differs = false;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t x = a.below(10);
    EXPECT_EQ(x, b.below(10));
    EXPECT_LT(x, 10U);
    differs |= x != other.below(10);
    const double u = a.uniform();
    EXPECT_EQ(u, b.uniform());
    EXPECT_TRUE(u >= 0 && u < 1);
  }
  EXPECT_TRUE(differs);
}

TEST(Time, SecondsSaturateInsteadOfOverflowing) {
  EXPECT_EQ(from_seconds(1.5), std::chrono::milliseconds(1500));
  EXPECT_GT(from_seconds(1e30), std::chrono::hours(24 * 365 * 200));
  EXPECT_LT(from_seconds(-1e30), Duration::zero());
}

Result<int> half(int n) {
  if (n % 2 != 0) return fail(ErrorCode::kInvalidArgument, "odd");
  return n / 2;
}
Result<int> quarter(int n) {
  TRY(const int h, half(n));
  return half(h);
}

TEST(Result, TryBindsOrReturnsTheError) {
  EXPECT_EQ(quarter(12).value(), 3);
  EXPECT_EQ(quarter(6).error().message, "odd");
  EXPECT_EQ(quarter(5).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
