#include "net/tcp_sink.h"

// Boost 1.74's awaitable.hpp uses std::exchange without including it.
// clang-format off
#include <utility>
#include <boost/asio/awaitable.hpp>
// clang-format on

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>

#include "transfer/peer_transfer.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

class Sink final : public TcpSink, public std::enable_shared_from_this<Sink> {
 public:
  Sink(TcpShared& shared, tcp::socket socket, TcpSinkEvents events)
      : shared_(shared),
        socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        events_(std::move(events)) {}

  void close() override {
    error_code ignored;
    deadline_.cancel(ignored);
    socket_.close(ignored);
  }

  asio::awaitable<void> run() {
    bool going = co_await greet();
    while (going) going = co_await take_frame();
    close();
    events_.ended();
  }

 private:
  asio::awaitable<bool> greet() {
    deadline_.expires_after(shared_.options.patience);
    deadline_.async_wait([self = shared_from_this()](const error_code& ec) {
      if (!ec) self->close();
    });
    KvHello hello;
    error_code ec;
    co_await asio::async_read(socket_, asio::buffer(&hello, sizeof hello),
                              asio::redirect_error(asio::use_awaitable, ec));
    deadline_.cancel();
    const KvHello ours;
    const bool alike =
        hello.magic == ours.magic && hello.block_bytes == shared_.arena.layout.block_bytes();
    if (ec || !alike || !events_.admit(shared_from_this(), hello.secret)) co_return false;
    const KvWelcome welcome;
    co_await asio::async_write(socket_, asio::buffer(&welcome, sizeof welcome),
                               asio::redirect_error(asio::use_awaitable, ec));
    co_return !ec;
  }

  // True: the next one may come.
  asio::awaitable<bool> take_frame() {
    error_code ec;
    co_await asio::async_read(socket_, asio::buffer(&frame_, sizeof frame_),
                              asio::redirect_error(asio::use_awaitable, ec));
    if (ec) co_return false;
    if (frame_.blocks == 0 || frame_.blocks > kMaxFrameBlocks) {
      spdlog::error("a frame of {} KV blocks came; it has 1 to {}", frame_.blocks, kMaxFrameBlocks);
      co_return false;
    }
    to_.resize(frame_.blocks);
    co_await asio::async_read(socket_, asio::buffer(to_.data(), to_.size() * sizeof(BlockId)),
                              asio::redirect_error(asio::use_awaitable, ec));
    refused_.reset();
    checked_ = false;
    const std::size_t total = to_.size() * shared_.arena.layout.block_bytes();
    for (std::size_t at = 0; !ec && at < total;) {
      at += place(at, total, ec);
      if (ec != asio::error::would_block && ec != asio::error::try_again) continue;
      co_await socket_.async_wait(tcp::socket::wait_read,
                                  asio::redirect_error(asio::use_awaitable, ec));
    }
    if (ec) co_return false;
    verify();
    const bool told = co_await answer();
    // Others of this thread have their turn.
    co_await asio::post(socket_.get_executor(), asio::use_awaitable);
    co_return told;
  }

  // What has come of a slice, where it belongs. The number of bytes.
  std::size_t place(std::size_t at, std::size_t total, error_code& ec) {
    const std::lock_guard lock(shared_.moving);
    check();
    if (refused_) {
      return socket_.read_some(asio::buffer(nowhere_.data(), std::min(nowhere_.size(), total - at)),
                               ec);
    }
    shared_.slice(to_, at, parts_);
    return socket_.read_some(parts_, ec);
  }

  // Against the reservations of this moment; under `moving`.
  void check() {
    if (refused_ || (checked_ && version_ == shared_.expected.version())) return;
    checked_ = true;
    version_ = shared_.expected.version();
    const HandoffKey key{RequestId{frame_.request}, frame_.attempt, frame_.life};
    if (Status allowed = shared_.expected.check(key, to_); !allowed) refused_ = allowed.error();
  }

  void verify() {
    if (frame_.checksum == 0) return;
    std::uint64_t sum = 0;
    for (const BlockId block : to_) {
      const std::lock_guard lock(shared_.moving);
      check();
      if (refused_) return;
      sum = shared_.add_to_checksum(sum, block);
    }
    if (sum == frame_.checksum) return;
    refused_ =
        Error{ErrorCode::kTransport, "the KV that came has another checksum than what was sent", 0};
  }

  asio::awaitable<bool> answer() {
    KvFrameReceipt receipt;
    receipt.ticket = frame_.ticket;
    std::string text;
    if (refused_) {
      receipt.error = 1 + static_cast<std::uint32_t>(refused_->code);
      text = refused_->message.substr(0, kMaxReceiptText);
      receipt.text = static_cast<std::uint32_t>(text.size());
    }
    const std::array<asio::const_buffer, 2> parts{asio::buffer(&receipt, sizeof receipt),
                                                  asio::buffer(text)};
    error_code ec;
    co_await asio::async_write(socket_, parts, asio::redirect_error(asio::use_awaitable, ec));
    co_return !ec;
  }

  TcpShared& shared_;
  tcp::socket socket_;
  asio::steady_timer deadline_;
  const TcpSinkEvents events_;

  // Of the present frame.
  KvFrame frame_;
  std::vector<BlockId> to_;
  std::vector<asio::mutable_buffer> parts_;
  std::optional<Error> refused_;  // what comes is not wanted
  bool checked_ = false;
  std::uint64_t version_ = 0;  // of the reservations when it was checked
  std::array<char, 65536> nowhere_{};
};

}  // namespace

void serve_tcp_source(TcpShared& shared, tcp::socket socket, TcpSinkEvents events) {
  error_code ec;
  socket.set_option(tcp::no_delay(true), ec);
  socket.non_blocking(true, ec);
  auto executor = socket.get_executor();
  asio::co_spawn(
      executor,
      [sink = std::make_shared<Sink>(shared, std::move(socket), std::move(events))] {
        return sink->run();
      },
      asio::detached);
}

}  // namespace sluice
