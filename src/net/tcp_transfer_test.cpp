// What KV over TCP keeps beside what all connections do: callers that do not keep to the protocol.
#include "net/tcp_transfer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <thread>

#include "base/rng.h"
#include "net/kv_connections_test_support.h"
#include "net/tcp_frames.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

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

TEST(TcpTransfer, NoBytesHurt) {
  Ends e(Carrier::kTcp, {.patience = std::chrono::milliseconds(300)});
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
  e.expect_all_is_well();
}

TEST(TcpTransfer, WrongFramesAreAnsweredOrEnded) {
  Ends e(Carrier::kTcp);
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
  Ends e(Carrier::kTcp, {.slice_bytes = 4096, .first_retry = std::chrono::milliseconds(10)});
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
  e.expect_done_or_lost(ticket);
}

TEST(TcpTransfer, WhoDoesNotReadHoldsItsTransfersUntilItsEnd) {
  Ends e(Carrier::kTcp, {.frame_bytes = 400 * kBlock, .max_in_flight = 50});
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
