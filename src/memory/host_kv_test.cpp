#include "memory/host_kv.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/fake_device_kv.h"

namespace sluice {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 2, .num_kv_heads = 1, .head_dim_k = 8, .head_dim_v = 8, .block_tokens = 4};

std::span<std::byte> block(const KvView& view, std::int32_t id) {
  const std::size_t bytes = view.layout.block_bytes();
  return {view.base + static_cast<std::size_t>(id) * bytes, bytes};
}
void fill(const KvView& view, std::int32_t id, int value) {
  std::memset(block(view, id).data(), value, block(view, id).size());
}
bool is_filled(const KvView& view, std::int32_t id, int value) {
  for (const std::byte b : block(view, id)) {
    if (b != static_cast<std::byte>(value)) return false;
  }
  return true;
}

TEST(HostKv, WhatWasSavedComesBackElsewhere) {
  auto device = KvArena::create(kLayout, 6);
  auto host = KvArena::create(kLayout, 3);
  ASSERT_TRUE(device && host);
  const KvView view = device->view();
  for (int i = 0; i < 6; ++i) fill(view, i, 10 + i);
  const auto kv = make_arena_host_kv(view, std::move(*host));
  EXPECT_EQ(kv->num_blocks(), 3);

  const std::vector<BlockId> from{BlockId{4}, BlockId{1}};
  const std::vector<BlockId> kept{BlockId{2}, BlockId{0}};
  const std::vector<BlockId> to{BlockId{0}, BlockId{5}};
  kv->save(from, kept);
  fill(view, 4, 99);  // the device's blocks are others' now
  fill(view, 1, 99);
  kv->restore(kept, to);
  EXPECT_TRUE(is_filled(view, 0, 14));
  EXPECT_TRUE(is_filled(view, 5, 11));
  EXPECT_TRUE(is_filled(view, 2, 12)) << "a block that nobody named";
  EXPECT_TRUE(is_filled(view, 4, 99));
}

TEST(HostKv, KeepsWhatADeviceHeld) {
  FakeDeviceKv device(kLayout, 6);
  auto host = KvArena::create(kLayout, 3);
  ASSERT_TRUE(host);
  for (int i = 0; i < 6; ++i) fill(device.memory(), i, 10 + i);
  const auto kv = make_arena_host_kv(device.view(), std::move(*host));
  const std::vector<BlockId> from{BlockId{4}, BlockId{1}};
  const std::vector<BlockId> kept{BlockId{2}, BlockId{0}};
  const std::vector<BlockId> to{BlockId{0}, BlockId{5}};
  kv->save(from, kept);
  fill(device.memory(), 4, 99);
  kv->restore(kept, to);
  EXPECT_TRUE(is_filled(device.memory(), 0, 14));
  EXPECT_TRUE(is_filled(device.memory(), 5, 11));
  EXPECT_EQ(device.num_reads(), 2);
  EXPECT_EQ(device.num_writes(), 2);
}

}  // namespace
}  // namespace sluice
