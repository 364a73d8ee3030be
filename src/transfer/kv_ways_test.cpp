#include "transfer/kv_ways.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace sluice {
namespace {

constexpr KvLayout kLayout{
    .num_layers = 1, .num_kv_heads = 1, .head_dim_k = 4, .head_dim_v = 4, .block_tokens = 4};

// Keeps what it is given, and has nobody to send it to.
struct Stream final : KvStream {
  [[nodiscard]] bool reaches(const KvPeer& peer) const override { return reached.contains(peer); }
  Status start(TransferTicket ticket, const TransferTarget&, std::vector<BlockMove>) override {
    started.push_back(ticket);
    return {};
  }
  void cancel(TransferTicket ticket) override { std::erase(started, ticket); }
  void poll(std::vector<TransferDone>& done) override {
    for (const TransferTicket ticket : started) done.push_back({.ticket = ticket});
    started.clear();
  }
  [[nodiscard]] bool idle() const override { return started.empty(); }
  void expect(const HandoffKey& key, std::span<const BlockId>) override { expected = key; }
  void close(RequestId) override { expected = {}; }
  std::set<KvPeer> reached;
  std::vector<TransferTicket> started;
  HandoffKey expected;
};

struct Channel final : KvChannel {
  bool send(const KvPeer& to, KvMessage&&) override {
    ++sent[to];
    return true;
  }
  bool reads_ours(const KvPeer& peer) override { return peer == reader; }
  std::shared_ptr<const PeerArena> arena_of(const KvPeer&) override { return nullptr; }
  std::map<KvPeer, int> sent;
  KvPeer reader;
};

TEST(KvWays, TheBestWayToEachPeerIsTaken) {
  constexpr KvPeer kReader{InstanceId{1}, Incarnation{1}};  // and reached by a stream
  constexpr KvPeer kStreamed{InstanceId{2}, Incarnation{1}};
  constexpr KvPeer kFormer{InstanceId{2}, Incarnation{2}};  // another life of it
  constexpr KvPeer kFast{InstanceId{3}, Incarnation{1}};    // by two streams
  std::vector<std::byte> memory(8 * kLayout.block_bytes());
  const KvView arena{memory.data(), kLayout, 8};
  Channel channel;
  channel.reader = kReader;
  std::vector<std::unique_ptr<KvStream>> owned;
  owned.push_back(std::make_unique<Stream>());
  Stream& fast = static_cast<Stream&>(*owned.back());
  owned.push_back(std::make_unique<Stream>());
  Stream& stream = static_cast<Stream&>(*owned.back());
  fast.reached = {kReader, kFast};
  stream.reached = {kReader, kStreamed, kFast};
  KvWays ways(std::make_unique<PeerTransfer>(arena, PeerTransferOptions{}, channel),
              std::move(owned), channel);

  const HandoffKey key{RequestId{3}, 1, 0};
  const auto start = [&](std::uint64_t ticket, const KvPeer& to) {
    return ways.start(TransferTicket{ticket}, {to.instance, to.incarnation, key, kPieceMemory},
                      {{BlockId{0}, BlockId{1}}});
  };
  ASSERT_TRUE(start(1, kReader));
  ASSERT_TRUE(start(2, kStreamed));
  ASSERT_TRUE(start(3, kFormer));
  ASSERT_TRUE(start(4, kStreamed));
  ASSERT_TRUE(start(5, kFast));
  EXPECT_EQ(fast.started, std::vector<TransferTicket>{TransferTicket{5}});
  EXPECT_EQ(stream.started, (std::vector<TransferTicket>{TransferTicket{2}, TransferTicket{4}}));
  ways.cancel(TransferTicket{4});
  EXPECT_FALSE(ways.idle());
  EXPECT_TRUE(ways.busy());
  std::vector<TransferDone> done;
  ways.poll(done);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_EQ(done[0].ticket, TransferTicket{5});
  EXPECT_EQ(done[1].ticket, TransferTicket{2});
  EXPECT_EQ(channel.sent, (std::map<KvPeer, int>{{kReader, 1}, {kFormer, 1}}));
  EXPECT_FALSE(ways.idle()) << "two wait for their receipts";

  const std::vector<BlockId> blocks{BlockId{5}};
  ways.expect(key, blocks);
  EXPECT_EQ(fast.expected, key);
  EXPECT_EQ(stream.expected, key);
  ways.close(key.request);
  EXPECT_EQ(stream.expected, HandoffKey{});
}

}  // namespace
}  // namespace sluice
