// Callers over UCX that do not keep to the protocol.
#include "net/ucx_transfer.h"

#include <gtest/gtest.h>

#if SLUICE_UCX

#include <algorithm>
#include <cstring>

#include "base/rng.h"
#include "net/kv_connections_test_support.h"
#include "net/ucx_frames.h"
#include "net/ucx_worker.h"

namespace sluice {
namespace {

// Says what it likes.
class Caller final : private UcxEvents {
 public:
  explicit Caller(int port) {
    auto ucx = load_ucx();
    CHECK(ucx.has_value());
    auto worker = UcxWorker::create(**ucx, /*any_network=*/true, std::size_t{64} << 20, *this);
    CHECK(worker.has_value());
    worker_ = std::move(*worker);
    auto endpoint = worker_->connect("127.0.0.1", std::to_string(port));
    CHECK(endpoint.has_value());
    endpoint_ = *endpoint;
  }
  void greet(const std::string& secret) {
    UcxHello hello;
    hello.block_bytes = kBlock;
    std::copy(secret.begin(), secret.end(), hello.secret.begin());
    say(kUcxHello, hello);
  }
  template <class Header>
  void say(unsigned id, const Header& header, std::vector<std::byte> payload = {}) {
    worker_->send(endpoint_, id, header, std::move(payload));
  }
  // The next message, or that the other side has ended it.
  [[nodiscard]] bool hear() {
    const std::size_t before = heard_;
    (void)Ends::wait([&] {
      worker_->progress(std::chrono::milliseconds(1));
      return heard_ > before || ended_;
    });
    return heard_ > before;
  }
  [[nodiscard]] bool ended() { return !hear() && ended_; }
  // Of the frame that it sends.
  [[nodiscard]] std::uint32_t error_of(const UcxFrame& frame, std::int32_t block, int value) {
    std::vector<std::byte> payload(sizeof block + kBlock, static_cast<std::byte>(value));
    std::memcpy(payload.data(), &block, sizeof block);
    say(kUcxFrame, frame, std::move(payload));
    return hear() ? receipt_.error : ~0U;
  }

 private:
  void accepted(ucp_ep_h) override {}
  void broken(ucp_ep_h, const std::string&) override { ended_ = true; }
  void message(unsigned id, ucp_ep_h, std::span<const std::byte> header,
               std::span<const std::byte>) override {
    ++heard_;
    if (id == kUcxReceipt) std::memcpy(&receipt_, header.data(), sizeof receipt_);
  }

  std::unique_ptr<UcxWorker> worker_;
  ucp_ep_h endpoint_ = nullptr;
  std::size_t heard_ = 0;
  bool ended_ = false;
  UcxReceipt receipt_;
};

TEST(UcxTransfer, NoMessageHurts) {
  Ends e(Carrier::kUcx, {.patience = std::chrono::milliseconds(300)});
  e.expect(0, 10);
  Rng rng(5);
  for (int i = 0; i < 20; ++i) {
    Caller caller(e.target.port());
    if (i % 2 == 0) {  // the last one that is welcome takes the way from the one before
      caller.greet(e.secret);
      ASSERT_TRUE(caller.hear());
    }
    std::array<std::uint32_t, 10> header{};
    for (std::uint32_t& word : header) word = static_cast<std::uint32_t>(rng());
    std::vector<std::byte> payload(rng() % 200'000);
    for (std::byte& b : payload) b = static_cast<std::byte>(rng());
    caller.say(i % 4 < 2 ? kUcxFrame : static_cast<unsigned>(i % 3), header, std::move(payload));
    EXPECT_TRUE(caller.ended()) << i;
  }
  Caller silent(e.target.port());
  EXPECT_TRUE(silent.ended()) << "who says nothing is not waited for";
  e.expect_all_is_well();
}

TEST(UcxTransfer, WrongFramesAreAnsweredOrEnded) {
  Ends e(Carrier::kUcx);
  e.expect(0, 10);
  const UcxFrame right{.ticket = 1, .request = 7, .attempt = 1, .blocks = 1};
  for (const std::uint32_t blocks : {0U, 2U, kMaxFrameBlocks + 1, ~0U}) {
    Caller caller(e.target.port());
    caller.greet(e.secret);
    ASSERT_TRUE(caller.hear());
    UcxFrame frame = right;
    frame.blocks = blocks;
    EXPECT_EQ(caller.error_of(frame, 0, 9), ~0U) << blocks << " and the payload of one";
  }
  Caller caller(e.target.port());
  caller.greet(e.secret);
  ASSERT_TRUE(caller.hear());
  EXPECT_EQ(caller.error_of(right, 3, 9), 0U);
  UcxFrame summed = right;
  summed.checksum = 12345;
  EXPECT_EQ(caller.error_of(summed, 4, 9), 1 + static_cast<std::uint32_t>(ErrorCode::kTransport));
  for (const std::int32_t block : {-1, 10, kBlocks, 1 << 30}) {
    EXPECT_EQ(caller.error_of(right, block, 9),
              1 + static_cast<std::uint32_t>(ErrorCode::kInvalidArgument));
  }
  EXPECT_EQ(e.to.value_of(3), 9);
  EXPECT_EQ(e.to.value_of(4), 0);
  for (std::int32_t b = 10; b < kBlocks; ++b) EXPECT_EQ(e.to.value_of(b), 0);
}

TEST(UcxTransfer, WithoutRdmaItIsOnlyThereWhereAnyNetworkWillDo) {
  if (rdma_is_there()) GTEST_SKIP() << "there is RDMA";
  FakeKvMemory memory(kLayout, kBlocks);
  const auto made = make_ucx_transfer(memory.view(), {}, [] {});
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace sluice

#else

namespace sluice {

TEST(UcxTransfer, IsNotThereWhenItWasNotBuilt) {
  EXPECT_EQ(make_ucx_transfer({}, {}, [] {}).error().code, ErrorCode::kUnavailable);
}

}  // namespace sluice

#endif
