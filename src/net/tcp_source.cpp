#include "net/tcp_source.h"

// Boost 1.74's awaitable.hpp uses std::exchange without including it.
// clang-format off
#include <utility>
#include <boost/asio/awaitable.hpp>
// clang-format on

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <deque>

namespace sluice {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// What is sent of a frame whose transfer was cancelled meanwhile.
const std::array<char, 65536> kPadding{};

class Source final : public TcpSource, public std::enable_shared_from_this<Source> {
 public:
  Source(asio::io_context& context, TcpShared& shared, const KvSecret& secret,
         TcpSourceEvents events)
      : shared_(shared),
        secret_(secret),
        events_(std::move(events)),
        socket_(context),
        resolver_(context),
        deadline_(context),
        work_(context, asio::steady_timer::time_point::max()) {}

  void add(std::shared_ptr<KvJob> job) override {
    if (closed_) return fail_job(*job, "the connection is closed");
    jobs_.push_back(std::move(job));
    work_.cancel();
  }
  void look() override {
    finish();
    work_.cancel();
  }
  void close() override {
    events_.broken = nullptr;
    end("the connection is closed");
  }

  asio::awaitable<void> run(std::string host, std::string port) {
    deadline_.expires_after(shared_.options.patience);
    deadline_.async_wait([self = shared_from_this()](const error_code& ec) {
      if (!ec) self->end("no answer in time");
    });
    error_code ec;
    const auto found =
        co_await resolver_.async_resolve(host, port, asio::redirect_error(asio::use_awaitable, ec));
    if (!ec) {
      co_await asio::async_connect(socket_, found, asio::redirect_error(asio::use_awaitable, ec));
    }
    if (!ec) ec = co_await greet();
    if (closed_) co_return;
    deadline_.cancel();
    if (ec) {
      end(ec.message());
      co_return;
    }
    events_.welcome();
    asio::co_spawn(
        socket_.get_executor(), [self = shared_from_this()] { return self->hear(); },
        asio::detached);
    co_await send_all();
  }

 private:
  asio::awaitable<error_code> greet() {
    error_code ec;
    socket_.set_option(tcp::no_delay(true), ec);
    socket_.non_blocking(true, ec);
    KvHello hello;
    hello.block_bytes = static_cast<std::uint32_t>(shared_.arena.layout.block_bytes());
    hello.secret = secret_;
    co_await asio::async_write(socket_, asio::buffer(&hello, sizeof hello),
                               asio::redirect_error(asio::use_awaitable, ec));
    if (ec) co_return ec;
    KvWelcome welcome;
    co_await asio::async_read(socket_, asio::buffer(&welcome, sizeof welcome),
                              asio::redirect_error(asio::use_awaitable, ec));
    if (!ec && welcome.magic != KvWelcome{}.magic) ec = asio::error::access_denied;
    co_return ec;
  }

  // Frames of its jobs in turn, until it is closed.
  asio::awaitable<void> send_all() {
    error_code ec;
    while (!closed_) {
      writing_ = next_job();
      if (!writing_) {
        work_.expires_at(asio::steady_timer::time_point::max());
        co_await work_.async_wait(asio::redirect_error(asio::use_awaitable, ec));
        continue;
      }
      ec = co_await send_frame(*writing_);
      writing_ = nullptr;
      if (ec) end(ec.message());
      finish();
      // Others of this thread have their turn.
      co_await asio::post(socket_.get_executor(), asio::use_awaitable);
    }
  }

  // The first with something to send, which goes to the end of the queue.
  std::shared_ptr<KvJob> next_job() {
    const auto it = std::find_if(jobs_.begin(), jobs_.end(), [this](const auto& job) {
      return job->next < job->moves.size() && !job->error && !shared_.is_cancelled(*job);
    });
    if (it == jobs_.end()) return nullptr;
    std::rotate(it, it + 1, jobs_.end());
    return jobs_.back();
  }

  asio::awaitable<error_code> send_frame(KvJob& job) {
    const std::size_t block_bytes = shared_.arena.layout.block_bytes();
    const std::size_t count = std::clamp<std::size_t>(
        shared_.options.frame_bytes / block_bytes, 1,
        std::min<std::size_t>(job.moves.size() - job.next, kMaxFrameBlocks));
    fill_head(job, count);
    error_code ec;
    const std::array<asio::const_buffer, 2> head{
        asio::buffer(&frame_, sizeof frame_),
        asio::buffer(to_.data(), to_.size() * sizeof(BlockId))};
    co_await asio::async_write(socket_, head, asio::redirect_error(asio::use_awaitable, ec));
    const std::size_t total = count * block_bytes;
    for (std::size_t at = 0; !ec && at < total;) {
      at += send_slice(job, at, total, ec);
      if (ec != asio::error::would_block && ec != asio::error::try_again) continue;
      co_await socket_.async_wait(tcp::socket::wait_write,
                                  asio::redirect_error(asio::use_awaitable, ec));
    }
    co_return ec;
  }

  void fill_head(KvJob& job, std::size_t count) {
    from_.clear();
    to_.clear();
    for (const BlockMove& move : std::span(job.moves).subspan(job.next, count)) {
      from_.push_back(move.from);
      to_.push_back(move.to);
    }
    job.next += count;
    ++job.unanswered;
    frame_.ticket = job.ticket.value;
    frame_.request = job.key.request.value;
    frame_.attempt = job.key.attempt;
    frame_.life = job.key.life;
    frame_.blocks = static_cast<std::uint32_t>(count);
    frame_.checksum = 0;
    if (!shared_.options.checksum) return;
    for (const BlockId block : from_) {
      const std::lock_guard lock(shared_.moving);
      if (!job.cancelled) frame_.checksum = shared_.add_to_checksum(frame_.checksum, block);
    }
  }

  std::size_t send_slice(const KvJob& job, std::size_t at, std::size_t total, error_code& ec) {
    const std::lock_guard lock(shared_.moving);
    if (job.cancelled) {
      return socket_.write_some(
          asio::buffer(kPadding.data(), std::min(kPadding.size(), total - at)), ec);
    }
    shared_.slice(from_, at, parts_);
    return socket_.write_some(parts_, ec);
  }

  // --- receipts

  asio::awaitable<void> hear() {
    error_code ec;
    while (!closed_) {
      KvFrameReceipt receipt;
      co_await asio::async_read(socket_, asio::buffer(&receipt, sizeof receipt),
                                asio::redirect_error(asio::use_awaitable, ec));
      if (!ec && receipt.text > kMaxReceiptText) ec = asio::error::message_size;
      std::string text;
      if (!ec) {
        text.resize(receipt.text);
        co_await asio::async_read(socket_, asio::buffer(text.data(), text.size()),
                                  asio::redirect_error(asio::use_awaitable, ec));
      }
      if (ec) {
        end(ec.message());
        co_return;
      }
      take(receipt, std::move(text));
    }
  }

  void take(const KvFrameReceipt& receipt, std::string text) {
    for (const auto& job : jobs_) {
      if (job->ticket.value != receipt.ticket) continue;
      job->answered(receipt.error, std::move(text));
      break;
    }
    finish();
  }

  // --- ends

  // Tells of those that are over. What is being written stays until the frame is whole.
  void finish() {
    std::erase_if(jobs_,
                  [this](const auto& job) { return job != writing_ && shared_.finish(*job); });
  }

  void fail_job(KvJob& job, const std::string& why) {
    shared_.fail_job(job, fmt::format("the connection broke: {}", why));
  }

  // Again does nothing. Nothing is read from the arena any more.
  void end(const std::string& why) {
    if (std::exchange(closed_, true)) return;
    error_code ignored;
    resolver_.cancel();
    deadline_.cancel();
    socket_.close(ignored);
    work_.cancel();
    for (const auto& job : std::exchange(jobs_, {})) fail_job(*job, why);
    if (auto broken = std::exchange(events_.broken, nullptr)) broken(why);
  }

  TcpShared& shared_;
  const KvSecret secret_;
  TcpSourceEvents events_;
  tcp::socket socket_;
  tcp::resolver resolver_;
  asio::steady_timer deadline_;
  asio::steady_timer work_;  // cancelled when there is something to do
  bool closed_ = false;
  std::deque<std::shared_ptr<KvJob>> jobs_;

  // Of the present frame.
  std::shared_ptr<KvJob> writing_;
  KvFrame frame_;
  std::vector<BlockId> from_;
  std::vector<BlockId> to_;
  std::vector<asio::const_buffer> parts_;
};

}  // namespace

std::shared_ptr<TcpSource> call_tcp_sink(asio::io_context& context, TcpShared& shared,
                                         const std::string& host, const std::string& port,
                                         const KvSecret& secret, TcpSourceEvents events) {
  auto source = std::make_shared<Source>(context, shared, secret, std::move(events));
  asio::co_spawn(
      context, [source, host, port] { return source->run(host, port); }, asio::detached);
  return source;
}

}  // namespace sluice
