// Two instances, each with its arena, and a channel that can be stopped, cut and spied on.
#include "transfer/peer_transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <set>

#include "base/fake_device_kv.h"
#include "base/fake_kv_memory.h"
#include "base/rng.h"

namespace sluice {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 2, .num_kv_heads = 2, .head_dim_k = 4, .head_dim_v = 4, .block_tokens = 4};
constexpr std::int32_t kBlocks = 64;
constexpr std::size_t kBlock = kLayout.block_bytes();
constexpr HandoffKey kKey{RequestId{7}, 1};

struct Memory final : PeerArena {
  FakeKvMemory memory{kLayout, kBlocks};
  [[nodiscard]] std::span<const std::byte> bytes() const override { return memory.bytes(); }
  [[nodiscard]] KvView view() { return memory.view(); }
  void fill(std::int32_t block, int value) { memory.fill(block, value); }
  [[nodiscard]] int value_of(std::int32_t block) { return memory.value_of(block); }
};

constexpr KvPeer kSource{InstanceId{1}, Incarnation{1}};
constexpr KvPeer kTarget{InstanceId{2}, Incarnation{1}};

class World {
 public:
  explicit World(bool named, PeerTransferOptions options = {})
      : to_target(*this, named),
        to_source(*this, named),
        source(from.view(), options, to_target),
        target(to.view(), options, to_source) {
    for (std::int32_t b = 0; b < kBlocks; ++b) from.fill(b, b + 1);
  }

  struct Channel final : KvChannel {
    Channel(World& w, bool n) : world(w), named(n) {}
    bool send(const KvPeer&, KvMessage&& message) override {
      if (cut) return false;
      queue.push_back(std::move(message));
      return true;
    }
    bool reads_ours(const KvPeer&) override { return named; }
    std::shared_ptr<const PeerArena> arena_of(const KvPeer&) override {
      if (!named) return nullptr;
      return {std::shared_ptr<void>(), &world.from};
    }
    World& world;
    const bool named;
    bool cut = false;
    std::deque<KvMessage> queue;
  };

  // One message each way, if there is one.
  void deliver() {
    if (!to_target.queue.empty()) {
      target.on_message(kSource, std::move(to_target.queue.front()));
      to_target.queue.pop_front();
    }
    if (!to_source.queue.empty()) {
      source.on_message(kTarget, std::move(to_source.queue.front()));
      to_source.queue.pop_front();
    }
  }
  void run() {
    for (int i = 0; i < 500 && !source.idle(); ++i) {
      source.poll(done);
      deliver();
      target.poll(done);
    }
  }
  Status start(std::uint64_t ticket, std::int32_t first, std::int32_t to_first, std::int32_t count,
               HandoffKey key = kKey) {
    std::vector<BlockMove> moves;
    for (std::int32_t i = 0; i < count; ++i) {
      moves.push_back({BlockId{first + i}, BlockId{to_first + i}});
    }
    return source.start(TransferTicket{ticket},
                        {kTarget.instance, kTarget.incarnation, key, kPieceMemory},
                        std::move(moves));
  }
  void expect(std::int32_t first, std::int32_t count, HandoffKey key = kKey) {
    std::vector<BlockId> blocks;
    for (std::int32_t i = 0; i < count; ++i) blocks.emplace_back(first + i);
    target.expect(key, blocks);
  }

  Memory from;
  Memory to;
  Channel to_target;
  Channel to_source;
  PeerTransfer source;
  PeerTransfer target;
  std::vector<TransferDone> done;
};

class Pieces : public testing::TestWithParam<bool> {};

TEST_P(Pieces, ArriveWhereTheyAreExpected) {
  World w(GetParam(),
          {.piece_bytes = 3 * kBlock, .named_piece_bytes = 5 * kBlock, .checksum = true});
  w.expect(20, 10);
  ASSERT_TRUE(w.start(1, 0, 20, 10));
  w.run();
  ASSERT_EQ(w.done.size(), 1U);
  EXPECT_EQ(w.done[0].outcome, TransferOutcome::kDone);
  EXPECT_EQ(w.done[0].bytes, static_cast<std::int64_t>(10 * kBlock));
  EXPECT_STREQ(w.done[0].transport, GetParam() ? "shm" : "grpc");
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(w.to.value_of(b), b >= 20 && b < 30 ? b - 19 : 0);
  }
  EXPECT_FALSE(w.source.busy());
  EXPECT_TRUE(w.target.idle());
}

TEST_P(Pieces, NothingToSendIsDoneAtOnce) {
  World w(GetParam());
  ASSERT_TRUE(w.start(1, 0, 0, 0));
  EXPECT_TRUE(w.source.busy());
  w.source.poll(w.done);
  ASSERT_EQ(w.done.size(), 1U);
  EXPECT_EQ(w.done[0].outcome, TransferOutcome::kDone);
}

TEST_P(Pieces, OnlySoManyAreOnTheirWay) {
  World w(GetParam(), {.piece_bytes = kBlock, .named_piece_bytes = kBlock, .pieces_in_flight = 3});
  w.expect(0, 12);
  ASSERT_TRUE(w.start(1, 0, 0, 6));
  ASSERT_TRUE(w.start(2, 6, 6, 6));
  w.source.poll(w.done);
  EXPECT_EQ(w.to_target.queue.size(), 3U);
  EXPECT_FALSE(w.source.busy()) << "it waits for a receipt, and sleeps meanwhile";
  w.source.poll(w.done);
  EXPECT_EQ(w.to_target.queue.size(), 3U);
  w.deliver();
  w.target.poll(w.done);
  w.deliver();
  EXPECT_TRUE(w.source.busy());
  w.run();
  EXPECT_EQ(w.done.size(), 2U);
  for (std::int32_t b = 0; b < 12; ++b) EXPECT_EQ(w.to.value_of(b), b + 1);
}

TEST_P(Pieces, TheReceiverCopiesABoundedAmountAPoll) {
  World w(GetParam(), {.bytes_a_poll = 2 * kBlock});
  w.expect(0, 5);
  ASSERT_TRUE(w.start(1, 0, 0, 5));
  w.source.poll(w.done);
  w.deliver();
  w.target.poll(w.done);
  EXPECT_EQ(w.to.value_of(1), 2);
  EXPECT_EQ(w.to.value_of(2), 0);
  EXPECT_TRUE(w.target.busy());
  // Between two polls its reservation ends, and the blocks are somebody else's.
  w.target.close(kKey.request);
  w.run();
  EXPECT_EQ(w.to.value_of(2), 0);
  ASSERT_EQ(w.done.size(), 1U);
  EXPECT_EQ(w.done[0].outcome, TransferOutcome::kFailed);
}

TEST_P(Pieces, WhatIsNotReservedIsNotWritten) {
  World w(GetParam());
  const auto failed = [&](const char* words) {
    w.run();
    ASSERT_EQ(w.done.size(), 1U) << words;
    EXPECT_EQ(w.done[0].outcome, TransferOutcome::kFailed);
    EXPECT_NE(w.done[0].error.message.find(words), std::string::npos) << w.done[0].error.message;
    w.done.clear();
    for (std::int32_t b = 0; b < kBlocks; ++b) EXPECT_EQ(w.to.value_of(b), 0);
  };
  ASSERT_TRUE(w.start(1, 0, 10, 2));
  failed("nothing is reserved");
  w.expect(10, 2);
  ASSERT_TRUE(w.start(2, 0, 10, 3));
  failed("block 12 is not among the 2");
  w.expect(10, 2, {kKey.request, 2});
  ASSERT_TRUE(w.start(3, 0, 10, 2));
  failed("nothing is reserved");
  w.expect(10, 2, {kKey.request, 1, 1});
  ASSERT_TRUE(w.start(4, 0, 10, 2));
  failed("nothing is reserved");
}

TEST(CarriedPieces, AreAsLongAsTheySayAndAsTheyLeft) {
  World w(false, {.checksum = true});
  w.expect(0, 4);
  ASSERT_TRUE(w.start(1, 0, 0, 2));
  w.source.poll(w.done);
  std::get<KvPiece>(w.to_target.queue[0]).bytes[kBlock / 2] ^= 1;
  w.run();
  ASSERT_EQ(w.done.size(), 1U);
  EXPECT_NE(w.done[0].error.message.find("checksum"), std::string::npos);
  ASSERT_TRUE(w.start(2, 0, 0, 2));
  w.source.poll(w.done);
  std::get<KvPiece>(w.to_target.queue[0]).bytes.pop_back();
  w.run();
  ASSERT_EQ(w.done.size(), 2U);
  EXPECT_NE(w.done[1].error.message.find("bytes"), std::string::npos);
  for (std::int32_t b = 0; b < 4; ++b) EXPECT_EQ(w.to.value_of(b), 0);
}

TEST(NamedPieces, NameBlocksOfTheArena) {
  World w(true);
  w.expect(0, 4);
  for (const std::int32_t bad : {-1, kBlocks}) {
    w.target.on_message(
        kSource,
        KvPiece{
            .ticket = TransferTicket{9}, .key = kKey, .to = {BlockId{0}}, .from = {BlockId{bad}}});
    w.target.poll(w.done);
    ASSERT_FALSE(w.to_source.queue.empty());
    EXPECT_FALSE(std::get<KvReceipt>(w.to_source.queue.front()).ok);
    w.to_source.queue.clear();
  }
}

TEST(PeerTransfer, RefusesWhatItCannotDo) {
  World w(false, {.max_in_flight = 1});
  const auto code = [&](std::string memory, BlockMove move) {
    return w.source
        .start(TransferTicket{1}, {kTarget.instance, kTarget.incarnation, kKey, std::move(memory)},
               {move})
        .error()
        .code;
  };
  EXPECT_EQ(code("", {BlockId{0}, BlockId{0}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(kPieceMemory, {BlockId{kBlocks}, BlockId{0}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code(kPieceMemory, {BlockId{0}, BlockId{-1}}), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(w.start(1, 0, 0, 1));
  EXPECT_EQ(w.start(2, 0, 0, 1).error().code, ErrorCode::kBusy);
}

// Whatever is cancelled, cut or closed: each accepted ticket is reported once, what is done is
// there, and no block is written that is not reserved.
TEST_P(Pieces, EveryTicketIsReportedOnceWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    Rng rng(seed);
    World w(GetParam(), {.piece_bytes = (1 + rng.below(3)) * kBlock,
                         .named_piece_bytes = (1 + rng.below(4)) * kBlock,
                         .pieces_in_flight = 1 + static_cast<std::int32_t>(rng.below(3)),
                         .bytes_a_poll = (1 + rng.below(4)) * kBlock,
                         .max_in_flight = 4});
    std::map<std::uint64_t, int> reported;
    std::set<std::uint64_t> accepted;
    for (std::uint64_t ticket = 1; ticket <= 10; ++ticket) {
      const HandoffKey key{RequestId{ticket}, 1};
      const auto first = static_cast<std::int32_t>(4 * ticket);
      const bool reserved = rng.below(4) != 0;
      if (reserved) w.expect(first, 4, key);
      const auto count = static_cast<std::int32_t>(rng.below(5));
      if (w.start(ticket, first, first, count, key)) accepted.insert(ticket);
      if (rng.below(5) == 0) w.source.cancel(TransferTicket{1 + rng.below(10)});
      if (rng.below(8) == 0) w.target.close(RequestId{1 + rng.below(10)});
      if (rng.below(10) == 0) {  // the way is lost with all that is on it, and found again
        w.to_target.queue.clear();
        w.to_source.queue.clear();
        w.source.peer_lost(kTarget);
      }
      for (auto n = rng.below(6); n > 0; --n) {
        w.source.poll(w.done);
        w.deliver();
        w.target.poll(w.done);
      }
    }
    w.run();
    EXPECT_TRUE(w.source.idle()) << seed;
    for (const TransferDone& d : w.done) {
      ++reported[d.ticket.value];
      if (d.outcome != TransferOutcome::kDone) continue;
      const auto first = static_cast<std::int32_t>(4 * d.ticket.value);
      for (std::int64_t b = 0; b < d.bytes / static_cast<std::int64_t>(kBlock); ++b) {
        EXPECT_EQ(w.to.value_of(first + static_cast<std::int32_t>(b)), first + b + 1) << seed;
      }
    }
    EXPECT_EQ(reported.size(), accepted.size()) << seed;
    for (const auto& [ticket, times] : reported) EXPECT_EQ(times, 1) << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Pieces, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "Named" : "Carried"; });

TEST(KvChecksum, SeesEveryBit) {
  std::vector<char> bytes(77, 'x');
  const std::uint64_t sum = kv_checksum(bytes);
  EXPECT_NE(sum, 0U);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      EXPECT_NE(kv_checksum(bytes), sum);
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
    }
  }
  EXPECT_NE(kv_checksum(std::span(bytes).first(76)), sum);
}

// From host memory to a device's and from there to another's: by pieces, and the bytes of a
// mapped arena go to a device as well.
TEST(PeerTransfer, ReachesTheMemoryOfDevices) {
  for (const bool named : {false, true}) {
    World w(named);
    FakeDeviceKv device(kLayout, kBlocks);
    PeerTransfer onto(device.view(), {}, w.to_source);
    std::vector<BlockId> blocks;
    for (std::int32_t b = 20; b < 25; ++b) blocks.emplace_back(b);
    onto.expect(kKey, blocks);
    ASSERT_TRUE(w.start(1, 3, 20, 5));
    for (int i = 0; i < 50 && !w.source.idle(); ++i) {
      w.source.poll(w.done);
      for (; !w.to_target.queue.empty(); w.to_target.queue.pop_front()) {
        onto.on_message(kSource, std::move(w.to_target.queue.front()));
      }
      onto.poll(w.done);
      for (; !w.to_source.queue.empty(); w.to_source.queue.pop_front()) {
        w.source.on_message(kTarget, std::move(w.to_source.queue.front()));
      }
    }
    ASSERT_EQ(w.done.size(), 1U);
    EXPECT_EQ(w.done[0].outcome, TransferOutcome::kDone);
    EXPECT_EQ(device.num_writes(), 5);
    for (std::int32_t b = 0; b < 5; ++b) {
      EXPECT_EQ(*device.memory().at(BlockId{20 + b}), static_cast<std::byte>(4 + b));
    }
  }
}

TEST(PeerTransfer, ADeviceSends) {
  World w(false);
  FakeDeviceKv device(kLayout, kBlocks);
  std::memset(device.memory().at(BlockId{9}), 77, kBlock);
  PeerTransfer from(device.view(), {}, w.to_target);
  w.expect(30, 1);
  ASSERT_TRUE(from.start(TransferTicket{1},
                         {kTarget.instance, kTarget.incarnation, kKey, kPieceMemory},
                         {{BlockId{9}, BlockId{30}}}));
  from.poll(w.done);
  w.deliver();
  w.target.poll(w.done);
  EXPECT_EQ(w.to.value_of(30), 77);
}

}  // namespace
}  // namespace sluice
