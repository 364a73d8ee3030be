// Two ends of connections for KV in one process, over the loopback.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/fake_kv_memory.h"
#include "base/inbox.h"
#include "net/tcp_transfer.h"
#include "net/ucx_transfer.h"

namespace sluice {

inline constexpr KvLayout kLayout{
    .num_layers = 3, .num_kv_heads = 2, .head_dim_k = 40, .head_dim_v = 40, .block_tokens = 4};
inline constexpr std::int32_t kBlocks = 400;
inline constexpr std::size_t kBlock = kLayout.block_bytes();
inline constexpr KvPeer kTarget{InstanceId{2}, Incarnation{1}};
inline constexpr HandoffKey kKey{RequestId{7}, 1, 0};

struct EndOptions {
  std::size_t frame_bytes = std::size_t{1} << 20;
  std::size_t slice_bytes = std::size_t{256} << 10;  // of TCP's
  std::size_t max_in_flight = 64;
  bool checksum = false;
  Duration patience = std::chrono::seconds(5);
  Duration first_retry = std::chrono::seconds(1);
};

enum class Carrier { kTcp, kUcx };

inline std::unique_ptr<KvConnections> make_end(Carrier by, const KvView& arena, const EndOptions& o,
                                               std::function<void()> wake) {
  if (by == Carrier::kTcp) {
    const TcpTransferOptions options{o.frame_bytes, o.slice_bytes, o.max_in_flight,
                                     o.checksum,    o.patience,    o.first_retry};
    return std::make_unique<TcpTransfer>(arena, options, std::move(wake));
  }
  auto made = make_ucx_transfer(arena,
                                {.frame_bytes = o.frame_bytes,
                                 .max_in_flight = o.max_in_flight,
                                 .checksum = o.checksum,
                                 .any_network = true,
                                 .patience = o.patience,
                                 .first_retry = o.first_retry},
                                std::move(wake));
  CHECK(made.has_value());
  return std::move(*made);
}

inline int value_of_source(std::int32_t block) {
  return 1 + block % 200;
}

class Ends {
 public:
  explicit Ends(Carrier by, const EndOptions& options = {})
      : source_(make_end(by, from.view(), options, [this] { woken_.push_urgent(true); })),
        target_(make_end(by, to.view(), options, [] {})),
        source(*source_),
        target(*target_) {
    for (std::int32_t b = 0; b < kBlocks; ++b) from.fill(b, value_of_source(b));
    EXPECT_TRUE(target.listen("127.0.0.1", "0"));
    secret = target.admit();
  }
  [[nodiscard]] bool join() {
    source.connect(kTarget, "127.0.0.1", target.port(), secret);
    return wait([this] { return source.reaches(kTarget); });
  }
  Status start(std::uint64_t ticket, std::int32_t first, std::int32_t to_first, std::int32_t count,
               HandoffKey key = kKey) {
    std::vector<BlockMove> moves;
    for (std::int32_t i = 0; i < count; ++i) {
      moves.push_back({BlockId{first + i}, BlockId{to_first + i}});
    }
    return source.start(TransferTicket{ticket}, {kTarget.instance, kTarget.incarnation, key, ""},
                        std::move(moves));
  }
  void expect(std::int32_t first, std::int32_t count, HandoffKey key = kKey) {
    std::vector<BlockId> blocks;
    for (std::int32_t i = 0; i < count; ++i) blocks.emplace_back(first + i);
    target.expect(key, blocks);
  }
  // Until so many tickets are reported in all.
  [[nodiscard]] bool wait_done(std::size_t count) {
    return wait([&] {
      source.poll(done);
      return done.size() >= count;
    });
  }
  // After whatever others have tried: a transfer that is due arrives, and nothing beside it.
  void expect_all_is_well() {
    ASSERT_TRUE(join());
    ASSERT_TRUE(start(1, 0, 0, 10));
    ASSERT_TRUE(wait_done(1));
    EXPECT_EQ(done[0].outcome, TransferOutcome::kDone);
    for (std::int32_t b = 10; b < kBlocks; ++b) EXPECT_EQ(to.value_of(b), 0);
  }
  // So many tickets have ended, each well or with its connection.
  void expect_done_or_lost(std::size_t count) const {
    for (const TransferDone& d : done) {
      if (d.outcome == TransferOutcome::kDone) continue;
      EXPECT_EQ(d.outcome, TransferOutcome::kFailed);
      EXPECT_EQ(d.error.code, ErrorCode::kTransport);
    }
    EXPECT_EQ(done.size(), count);
    EXPECT_TRUE(source.idle());
  }
  template <class Condition>
  static bool wait(const Condition& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  FakeKvMemory from{kLayout, kBlocks};
  FakeKvMemory to{kLayout, kBlocks};
  std::string secret;
  std::vector<TransferDone> done;

 private:
  Inbox<bool> woken_{1};
  std::unique_ptr<KvConnections> source_;
  std::unique_ptr<KvConnections> target_;

 public:
  KvConnections& source;
  KvConnections& target;
};

}  // namespace sluice
