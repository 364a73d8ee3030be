// Two ends in one process over the loopback, and callers that do not keep to the protocol.
#include "net/tcp_transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cstring>
#include <map>
#include <thread>

#include "base/inbox.h"
#include "base/rng.h"
#include "net/tcp_frames.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr KvLayout kLayout{
    .num_layers = 3, .num_kv_heads = 2, .head_dim_k = 40, .head_dim_v = 40, .block_tokens = 4};
constexpr std::int32_t kBlocks = 400;
constexpr std::size_t kBlock = kLayout.block_bytes();
constexpr KvPeer kTarget{InstanceId{2}, Incarnation{1}};
constexpr HandoffKey kKey{RequestId{7}, 1, 0};

struct Memory {
  std::vector<std::byte> all = std::vector<std::byte>(kBlocks * kBlock);
  [[nodiscard]] KvView view() { return {all.data(), kLayout, kBlocks}; }
  void fill(std::int32_t block, int value) {
    std::memset(all.data() + static_cast<std::size_t>(block) * kBlock, value, kBlock);
  }
  [[nodiscard]] int value_of(std::int32_t block) const {
    const std::byte* at = all.data() + static_cast<std::size_t>(block) * kBlock;
    const bool same = std::all_of(at, at + kBlock, [at](std::byte b) { return b == *at; });
    return same ? static_cast<int>(*at) : -1;
  }
};

int value_of_source(std::int32_t block) {
  return 1 + block % 200;
}

class Ends {
 public:
  explicit Ends(TcpTransferOptions options = {})
      : source(from.view(), options, [this] { woken_.push_urgent(true); }),
        target(to.view(), options, [] {}) {
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
  template <class Condition>
  static bool wait(const Condition& condition) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!condition()) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return true;
  }

  Memory from;
  Memory to;
  std::string secret;
  std::vector<TransferDone> done;

 private:
  Inbox<bool> woken_{1};

 public:
  TcpTransfer source;
  TcpTransfer target;
};

// A caller that says what it likes.
class Caller {
 public:
  explicit Caller(int port) : socket_(context_) {
    socket_.connect({asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(port)});
  }
  void say(const void* bytes, std::size_t size) {
    boost::system::error_code ignored;
    asio::write(socket_, asio::buffer(bytes, size), ignored);
  }
  template <class T>
  void say(const T& value) {
    say(&value, sizeof value);
  }
  void greet(const std::string& secret) {
    KvHello hello;
    hello.block_bytes = kBlock;
    std::copy(secret.begin(), secret.end(), hello.secret.begin());
    say(hello);
  }
  // False: the other side has ended it.
  template <class T>
  [[nodiscard]] bool hear(T& value) {
    boost::system::error_code ec;
    asio::read(socket_, asio::buffer(&value, sizeof value), ec);
    return !ec;
  }
  [[nodiscard]] bool welcome() {
    KvWelcome answer;
    return hear(answer);
  }
  [[nodiscard]] bool ended() {
    char any = 0;
    return !hear(any);
  }

 private:
  asio::io_context context_;
  tcp::socket socket_;
};

TEST(TcpTransfer, KvArrivesWhereItIsExpected) {
  // Slices that no block is a multiple of, and frames of few blocks.
  Ends e({.frame_bytes = 7 * kBlock, .slice_bytes = 1000, .checksum = true});
  e.expect(100, 250);
  ASSERT_TRUE(e.join());
  ASSERT_TRUE(e.start(1, 0, 100, 150));
  ASSERT_TRUE(e.start(2, 150, 250, 100));  // they take turns
  ASSERT_TRUE(e.start(3, 0, 0, 0));
  EXPECT_FALSE(e.source.idle());
  ASSERT_TRUE(e.wait_done(3));
  for (const TransferDone& d : e.done) {
    EXPECT_EQ(d.outcome, TransferOutcome::kDone) << d.error.message;
    EXPECT_STREQ(d.transport, "tcp");
    const std::size_t blocks = d.ticket.value == 1 ? 150 : d.ticket.value == 2 ? 100 : 0;
    EXPECT_EQ(d.bytes, static_cast<std::int64_t>(blocks * kBlock));
  }
  for (std::int32_t b = 0; b < kBlocks; ++b) {
    EXPECT_EQ(e.to.value_of(b), b >= 100 && b < 350 ? value_of_source(b - 100) : 0) << b;
  }
  EXPECT_TRUE(e.source.idle());
  EXPECT_FALSE(e.source.busy());
}

TEST(TcpTransfer, WhatIsNotReservedIsNotWritten) {
  Ends e({.frame_bytes = 4 * kBlock});
  e.expect(10, 10);
  ASSERT_TRUE(e.join());
  ASSERT_TRUE(e.start(1, 0, 10, 10, {kKey.request, 2, 0}));  // another attempt
  ASSERT_TRUE(e.wait_done(1));
  EXPECT_EQ(e.done[0].outcome, TransferOutcome::kFailed);
  EXPECT_EQ(e.done[0].error.code, ErrorCode::kNotFound);
  ASSERT_TRUE(e.start(2, 0, 15, 10));  // half of it is somebody else's
  ASSERT_TRUE(e.wait_done(2));
  EXPECT_EQ(e.done[1].error.code, ErrorCode::kInvalidArgument);
  for (std::int32_t b = 20; b < kBlocks; ++b) EXPECT_EQ(e.to.value_of(b), 0);
  ASSERT_TRUE(e.start(3, 0, 10, 10));
  ASSERT_TRUE(e.wait_done(3));
  EXPECT_EQ(e.done[2].outcome, TransferOutcome::kDone);
  EXPECT_EQ(e.to.value_of(19), value_of_source(9));
}

TEST(TcpTransfer, NobodyIsReachedWithoutTheSecret) {
  Ends e({.first_retry = std::chrono::milliseconds(5)});
  std::string wrong = e.secret;
  wrong[3] ^= 1;
  for (const std::string& secret : {wrong, std::string(), std::string(16, '\0')}) {
    e.source.connect(kTarget, "127.0.0.1", e.target.port(), secret);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_FALSE(e.source.reaches(kTarget));
    EXPECT_EQ(e.start(1, 0, 0, 1).error().code, ErrorCode::kUnavailable);
  }
  e.source.connect(kTarget, "no such host.invalid", 1, e.secret);
  EXPECT_TRUE(e.join());
  e.target.forget(e.secret);
  EXPECT_TRUE(Ends::wait([&] { return !e.source.reaches(kTarget); }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(e.source.reaches(kTarget)) << "a way that was forgotten";
}

TEST(TcpTransfer, NoBytesHurt) {
  Ends e({.patience = std::chrono::milliseconds(300)});
  e.expect(0, 10);
  Rng rng(5);
  for (int i = 0; i < 60; ++i) {
    Caller caller(e.target.port());
    const bool known = i % 2 == 0;
    const std::string secret = e.target.admit();
    if (known) caller.greet(secret);
    if (known) {
      EXPECT_TRUE(caller.welcome());
    }
    std::string bytes(1 + rng() % 3000, '\0');
    for (char& c : bytes) c = static_cast<char>(rng());
    caller.say(bytes.data(), bytes.size());
    e.target.forget(secret);
  }
  Caller silent(e.target.port());
  EXPECT_TRUE(silent.ended()) << "who says nothing is not waited for";
  ASSERT_TRUE(e.join());
  ASSERT_TRUE(e.start(1, 0, 0, 10));
  ASSERT_TRUE(e.wait_done(1));
  EXPECT_EQ(e.done[0].outcome, TransferOutcome::kDone);
  for (std::int32_t b = 10; b < kBlocks; ++b) EXPECT_EQ(e.to.value_of(b), 0);
}

TEST(TcpTransfer, WrongFramesAreAnsweredOrEnded) {
  Ends e;
  e.expect(0, 10);
  for (const std::uint32_t blocks : {0U, kMaxFrameBlocks + 1, ~0U}) {
    Caller caller(e.target.port());
    caller.greet(e.secret);
    ASSERT_TRUE(caller.welcome());
    caller.say(KvFrame{.ticket = 1, .request = 7, .attempt = 1, .blocks = blocks});
    EXPECT_TRUE(caller.ended());
  }
  Caller caller(e.target.port());
  caller.greet(e.secret);
  ASSERT_TRUE(caller.welcome());
  const std::vector<std::byte> kv(kBlock, std::byte{9});
  const auto frame = [&](std::int32_t block, std::uint64_t checksum) {
    caller.say(KvFrame{.ticket = 1, .request = 7, .attempt = 1, .checksum = checksum, .blocks = 1});
    caller.say(block);
    caller.say(kv.data(), kv.size());
    KvFrameReceipt receipt;
    EXPECT_TRUE(caller.hear(receipt));
    std::array<char, kMaxReceiptText> text{};
    for (std::uint32_t i = 0; i < receipt.text; ++i) EXPECT_TRUE(caller.hear(text[i]));
    return receipt.error;
  };
  EXPECT_EQ(frame(3, 0), 0U);
  EXPECT_EQ(frame(4, 12345), 1 + static_cast<std::uint32_t>(ErrorCode::kTransport));
  for (const std::int32_t block : {-1, 10, kBlocks, 1 << 30}) {
    EXPECT_EQ(frame(block, 0), 1 + static_cast<std::uint32_t>(ErrorCode::kInvalidArgument));
  }
  EXPECT_EQ(e.to.value_of(3), 9);
  for (std::int32_t b = 10; b < kBlocks; ++b) EXPECT_EQ(e.to.value_of(b), 0);
}

TEST(TcpTransfer, ABrokenConnectionFailsWhatIsOnItAndComesBack) {
  Ends e({.slice_bytes = 4096, .first_retry = std::chrono::milliseconds(10)});
  e.expect(0, kBlocks);
  ASSERT_TRUE(e.join());
  std::uint64_t ticket = 0;
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(Ends::wait([&] { return e.source.reaches(kTarget); }));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(e.start(++ticket, 0, 0, kBlocks));
    Caller thief(e.target.port());  // who shows the secret as well takes its place
    thief.greet(e.secret);
    ASSERT_TRUE(thief.welcome());
    ASSERT_TRUE(e.wait_done(ticket));
    EXPECT_TRUE(thief.ended()) << "the source has called again";
  }
  for (const TransferDone& d : e.done) {
    if (d.outcome == TransferOutcome::kDone) continue;
    EXPECT_EQ(d.outcome, TransferOutcome::kFailed);
    EXPECT_EQ(d.error.code, ErrorCode::kTransport);
  }
  EXPECT_EQ(e.done.size(), ticket);
  EXPECT_TRUE(e.source.idle());
}

TEST(TcpTransfer, AfterCloseNothingIsWritten) {
  Ends e({.frame_bytes = 40 * kBlock, .slice_bytes = 512});
  ASSERT_TRUE(e.join());
  for (std::uint64_t ticket = 1; ticket <= 40; ++ticket) {
    const HandoffKey key{RequestId{ticket}, 1, 0};
    e.expect(0, 200, key);
    ASSERT_TRUE(e.start(ticket, 0, 0, 200, key));
    std::this_thread::sleep_for(std::chrono::microseconds(20 * ticket));
    e.target.close(key.request);
    for (std::int32_t b = 0; b < 200; ++b) e.to.fill(b, 255);  // its next owner's
    ASSERT_TRUE(e.wait_done(ticket));
    for (std::int32_t b = 0; b < 200; ++b) ASSERT_EQ(e.to.value_of(b), 255);
  }
}

TEST(TcpTransfer, AfterCancelNothingIsRead) {
  Ends e({.frame_bytes = 40 * kBlock, .slice_bytes = 512});
  ASSERT_TRUE(e.join());
  e.expect(0, 400);
  for (std::uint64_t ticket = 1; ticket <= 40; ++ticket) {
    ASSERT_TRUE(e.start(ticket, 0, 0, 200));
    std::this_thread::sleep_for(std::chrono::microseconds(20 * ticket));
    e.source.cancel(TransferTicket{ticket});
    for (std::int32_t b = 0; b < 200; ++b) e.from.fill(b, 255);  // its next owner's
    ASSERT_TRUE(e.wait_done(ticket));
    EXPECT_NE(e.done.back().outcome, TransferOutcome::kFailed);
    for (std::int32_t b = 0; b < 200; ++b) e.from.fill(b, value_of_source(b));
  }
  // What was padding may still be on its way.
  e.target.close(kKey.request);
  for (std::int32_t b = 0; b < 200; ++b) EXPECT_NE(e.to.value_of(b), 255);
  e.expect(0, 400);
  ASSERT_TRUE(e.start(50, 0, 200, 200));
  ASSERT_TRUE(e.wait_done(41));
  for (std::int32_t b = 0; b < 200; ++b) EXPECT_EQ(e.to.value_of(200 + b), value_of_source(b));
}

TEST(TcpTransfer, WhoDoesNotReadHoldsItsTransfersUntilItsEnd) {
  Ends e({.frame_bytes = 400 * kBlock, .max_in_flight = 50});
  asio::io_context context;
  tcp::acceptor acceptor(context, {asio::ip::make_address("127.0.0.1"), 0});
  e.source.connect(kTarget, "127.0.0.1", acceptor.local_endpoint().port(), e.secret);
  tcp::socket socket = acceptor.accept();
  const KvWelcome welcome;
  asio::write(socket, asio::buffer(&welcome, sizeof welcome));
  ASSERT_TRUE(Ends::wait([&] { return e.source.reaches(kTarget); }));
  for (std::uint64_t t = 1; t <= 50; ++t) ASSERT_TRUE(e.start(t, 0, 0, kBlocks));
  EXPECT_EQ(e.start(51, 0, 0, 1).error().code, ErrorCode::kBusy);
  e.source.cancel(TransferTicket{40});
  ASSERT_TRUE(e.wait_done(1));
  EXPECT_EQ(e.done[0].ticket, TransferTicket{40});
  EXPECT_EQ(e.done[0].outcome, TransferOutcome::kCancelled);
  e.source.disconnect(kTarget);
  ASSERT_TRUE(e.wait_done(50));
  EXPECT_EQ(std::count_if(e.done.begin(), e.done.end(),
                          [](const auto& d) { return d.outcome == TransferOutcome::kFailed; }),
            49);
}

}  // namespace
}  // namespace sluice
