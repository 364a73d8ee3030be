// What every KvTransfer keeps, and what the local one does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/fake_device_kv.h"
#include "base/rng.h"
#include "transfer/faulty_transfer.h"
#include "transfer/local_transfer.h"

namespace sluice {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 2, .num_kv_heads = 2, .head_dim_k = 4, .head_dim_v = 4, .block_tokens = 4};

struct Memory {
  std::vector<std::byte> bytes = std::vector<std::byte>(32 * kLayout.block_bytes());
  KvView view() { return {bytes.data(), kLayout, 32}; }
  void fill(std::int32_t block, int value) {
    std::memset(bytes.data() + static_cast<std::size_t>(block) * kLayout.block_bytes(), value,
                kLayout.block_bytes());
  }
  bool holds(std::int32_t block, int value) const {
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(block) *
                                           static_cast<std::ptrdiff_t>(kLayout.block_bytes());
    return std::all_of(begin, begin + static_cast<std::ptrdiff_t>(kLayout.block_bytes()),
                       [value](std::byte b) { return b == static_cast<std::byte>(value); });
  }
};

std::vector<BlockMove> moves(std::int32_t from, std::int32_t to, std::int32_t count) {
  std::vector<BlockMove> all;
  for (std::int32_t i = 0; i < count; ++i) all.push_back({BlockId{from + i}, BlockId{to + i}});
  return all;
}

TEST(LocalTransfer, CopiesABoundedPieceAPoll) {
  Memory m;
  for (int b = 0; b < 5; ++b) m.fill(b, b + 1);
  LocalTransfer t(m.view(), {.bytes_a_poll = 2 * kLayout.block_bytes()});
  ASSERT_TRUE(t.start(TransferTicket{1}, {}, moves(0, 10, 5)));
  std::vector<TransferDone> done;
  t.poll(done);
  EXPECT_TRUE(done.empty());
  EXPECT_TRUE(m.holds(11, 2));
  EXPECT_TRUE(m.holds(12, 0));
  t.poll(done);
  t.poll(done);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].outcome, TransferOutcome::kDone);
  EXPECT_EQ(done[0].bytes, static_cast<std::int64_t>(5 * kLayout.block_bytes()));
  for (int b = 0; b < 5; ++b) EXPECT_TRUE(m.holds(10 + b, b + 1));
  EXPECT_TRUE(t.idle());
}

TEST(LocalTransfer, CopiesInADevicesMemory) {
  FakeDeviceKv device(kLayout, 32);
  for (std::int32_t b = 0; b < 3; ++b) {
    std::memset(device.memory().at(BlockId{b}), b + 1, kLayout.block_bytes());
  }
  LocalTransfer t(device.view(), {});
  ASSERT_TRUE(t.start(TransferTicket{1}, {}, moves(0, 10, 3)));
  std::vector<TransferDone> done;
  t.poll(done);
  ASSERT_EQ(done.size(), 1U);
  for (std::int32_t b = 0; b < 3; ++b) {
    EXPECT_EQ(std::memcmp(device.memory().at(BlockId{b}), device.memory().at(BlockId{10 + b}),
                          kLayout.block_bytes()),
              0);
  }
  EXPECT_EQ(device.num_reads(), 3);
}

TEST(LocalTransfer, RefusesWhatItCannotDo) {
  Memory m;
  LocalTransfer t(m.view(), {.max_in_flight = 2});
  EXPECT_EQ(t.start(TransferTicket{1}, {.memory = "elsewhere"}, {}).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(t.start(TransferTicket{1}, {}, moves(0, 30, 3)).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(t.start(TransferTicket{1}, {}, moves(-1, 3, 1)).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(t.start(TransferTicket{1}, {}, moves(3, 3, 1)).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_TRUE(t.start(TransferTicket{1}, {}, {}));
  EXPECT_TRUE(t.start(TransferTicket{2}, {}, {}));
  EXPECT_EQ(t.start(TransferTicket{3}, {}, {}).error().code, ErrorCode::kBusy);
}

// Each accepted ticket is reported exactly once, and what is done is there.
TEST(KvTransfer, EveryTicketIsReportedOnceWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    Memory m;
    LocalTransfer local(
        m.view(), {.bytes_a_poll = kLayout.block_bytes() * (1 + rng.below(4)), .max_in_flight = 4});
    FaultyTransfer t(local, {.refuse = 0.2, .fail = 0.2, .stall = 0.3}, Rng(seed));
    std::vector<int> reported(12, 0);
    std::vector<bool> accepted(12, false);
    std::vector<TransferDone> done;
    for (std::uint64_t i = 0; i < 12; ++i) {
      m.fill(0, static_cast<int>(i) + 1);
      const auto to = static_cast<std::int32_t>(8 + 2 * i % 24);
      accepted[i] = t.start(TransferTicket{i}, {}, {{BlockId{0}, BlockId{to}}}).has_value();
      if (rng.below(4) == 0) t.cancel(TransferTicket{rng.below(12)});
      for (auto polls = rng.below(4); polls > 0; --polls) t.poll(done);
    }
    for (int i = 0; i < 200 && !t.idle(); ++i) t.poll(done);
    EXPECT_TRUE(t.idle());
    for (const TransferDone& d : done) ++reported[d.ticket.value];
    for (std::size_t i = 0; i < 12; ++i) EXPECT_EQ(reported[i], accepted[i] ? 1 : 0);
  }
}

}  // namespace
}  // namespace sluice
