#include "memory/kv_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <utility>

namespace sluice {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 3, .num_kv_heads = 2, .head_dim_k = 64, .head_dim_v = 64, .block_tokens = 16};

TEST(KvArena, GivesEveryBlockItsBytes) {
  auto arena = KvArena::create(kLayout, 3000);
  ASSERT_TRUE(arena) << arena.error().message;
  const KvView view = arena->view();
  EXPECT_EQ(view.num_blocks, 3000);
  EXPECT_EQ(view.layout, kLayout);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.base) % (2 << 20), 0u);
  EXPECT_EQ(arena->bytes(), 3000 * kLayout.block_bytes());
  EXPECT_EQ(arena->num_chunks(), 2u);  // 70 MiB
  ASSERT_TRUE(arena->touch());
  EXPECT_EQ(view.base[0], std::byte{0});
  std::memset(view.base, 1, kLayout.block_bytes());
  std::memset(view.base + 2999 * kLayout.block_bytes(), 2, kLayout.block_bytes());
  EXPECT_EQ(view.base[arena->bytes() - 1], std::byte{2});
  EXPECT_EQ(view.base[kLayout.block_bytes()], std::byte{0});
}

TEST(KvArena, MovesWithItsMemory) {
  auto first = KvArena::create(kLayout, 4);
  auto second = KvArena::create(kLayout, 8);
  ASSERT_TRUE(first && second);
  std::byte* base = first->view().base;
  KvArena moved = std::move(*first);
  EXPECT_EQ(moved.view().base, base);
  *second = std::move(moved);
  EXPECT_EQ(second->view().base, base);
  EXPECT_EQ(second->view().num_blocks, 4);
  ASSERT_TRUE(second->touch());
}

TEST(KvArena, SaysWhatItCannotGive) {
  struct Case {
    const char* name;
    KvLayout layout;
    std::int32_t blocks;
    ErrorCode code;
    const char* words;
  };
  KvLayout no_heads = kLayout;
  no_heads.num_kv_heads = 0;
  KvLayout large = kLayout;
  large.num_layers = 1 << 20;
  KvLayout absurd = large;
  absurd.block_tokens = 1 << 20;
  const std::int32_t most = std::numeric_limits<std::int32_t>::max();
  for (const Case& c : {
           Case{"no blocks", kLayout, 0, ErrorCode::kInvalidArgument, "0 blocks"},
           Case{"negative", kLayout, -5, ErrorCode::kInvalidArgument, "-5 blocks"},
           Case{"no heads", no_heads, 5, ErrorCode::kInvalidArgument, "0 heads"},
           Case{"beyond an address space", absurd, most, ErrorCode::kInvalidArgument, "2147483647"},
           Case{"beyond this system", large, 1 << 20, ErrorCode::kNeverFits, "1048576 blocks"},
       }) {
    SCOPED_TRACE(c.name);
    const auto arena = KvArena::create(c.layout, c.blocks);
    ASSERT_FALSE(arena);
    EXPECT_EQ(arena.error().code, c.code);
    EXPECT_NE(arena.error().message.find(c.words), std::string::npos) << arena.error().message;
  }
}

}  // namespace
}  // namespace sluice
