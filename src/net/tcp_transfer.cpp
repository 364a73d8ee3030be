#include "net/tcp_transfer.h"

// Boost 1.74's awaitable.hpp uses std::exchange without including it.
// clang-format off
#include <utility>
#include <boost/asio/awaitable.hpp>
// clang-format on

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <cstring>
#include <map>
#include <random>
#include <thread>

#include "net/tcp_sink.h"
#include "net/tcp_source.h"
#include "net/thread_name.h"

namespace sluice {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr Duration kLastRetry = std::chrono::seconds(30);
constexpr int kMaxStrangers = 64;  // connections that have not shown a secret yet

KvSecret random_secret() {
  std::random_device device;
  KvSecret secret;
  for (std::size_t i = 0; i < secret.size(); i += sizeof(unsigned)) {
    const unsigned word = device();
    std::memcpy(&secret[i], &word, sizeof word);
  }
  return secret;
}

// In a time that says nothing about where two secrets differ.
bool equal(const KvSecret& a, const KvSecret& b) {
  int difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) difference |= a[i] ^ b[i];
  return difference == 0;
}

// All zero, which no way is given, where `text` is not one.
KvSecret secret_of(const std::string& text) {
  KvSecret secret{};
  if (text.size() == secret.size()) std::copy(text.begin(), text.end(), secret.begin());
  return secret;
}

}  // namespace

class TcpTransfer::Impl {
 public:
  Impl(const KvView& arena, TcpTransferOptions options, std::function<void()> wake)
      : shared(arena, options, std::move(wake)), acceptor_(context_) {
    thread_ = std::thread([this] { run(); });
  }
  ~Impl() {
    context_.stop();
    thread_.join();
  }

  Status listen(const std::string& host, const std::string& port) {
    error_code ec;
    tcp::resolver resolver(context_);
    const auto found = resolver.resolve(host, port, tcp::resolver::passive, ec);
    if (!ec) {
      const tcp::endpoint at = found.begin()->endpoint();
      acceptor_.open(at.protocol(), ec);
      if (!ec) acceptor_.set_option(tcp::acceptor::reuse_address(true), ec);
      if (!ec) acceptor_.bind(at, ec);
      if (!ec) acceptor_.listen(128, ec);
      if (!ec) port_ = acceptor_.local_endpoint(ec).port();
    }
    if (ec) {
      return fail(ErrorCode::kUnavailable,
                  fmt::format("cannot listen for KV at {}:{}: {}", host, port, ec.message()));
    }
    asio::co_spawn(context_, accept(), asio::detached);
    return {};
  }
  [[nodiscard]] int port() const { return port_; }

  std::string admit() {
    const KvSecret secret = random_secret();
    post([this, secret] { ways_in_.push_back({secret, {}}); });
    return {secret.begin(), secret.end()};
  }
  void forget(const std::string& text) {
    post([this, secret = secret_of(text)] {
      std::erase_if(ways_in_, [&](const WayIn& way) {
        if (!equal(way.secret, secret)) return false;
        if (const auto sink = way.sink.lock()) sink->close();
        return true;
      });
    });
  }

  void connect(const KvPeer& peer, const std::string& host, int port, const std::string& secret) {
    post([=, this] {
      end(peer);
      WayOut& way = ways_out_[peer];
      way.host = host;
      way.port = std::to_string(port);
      way.secret = secret_of(secret);
      way.retry = shared.options.first_retry;
      call(peer, way);
    });
  }
  void disconnect(const KvPeer& peer) {
    post([this, peer] {
      end(peer);
      ways_out_.erase(peer);
    });
  }

  void send(const KvPeer& peer, std::shared_ptr<TcpJob> job) {
    post([this, peer, job = std::move(job)] {
      const auto it = ways_out_.find(peer);
      if (it != ways_out_.end() && it->second.source) return it->second.source->add(job);
      shared.tell(*job, TransferOutcome::kFailed,
                  {ErrorCode::kTransport, "the connection to the peer was lost", 0});
    });
  }
  void look() {
    post([this] {
      for (auto& [peer, way] : ways_out_) {
        if (way.source) way.source->look();
      }
    });
  }

  TcpShared shared;
  // Of the engine's loop.
  std::map<TransferTicket, std::shared_ptr<TcpJob>> jobs;

 private:
  struct WayIn {
    KvSecret secret;
    std::weak_ptr<TcpSink> sink;
  };
  struct WayOut {
    std::string host;
    std::string port;
    KvSecret secret{};
    std::shared_ptr<TcpSource> source;  // null: between two calls
    std::unique_ptr<asio::steady_timer> again;
    Duration retry{};
    std::string told;  // the last failure that was logged
  };

  template <class Call>
  void post(Call call) {
    asio::post(context_, std::move(call));
  }

  void run() {
    set_thread_name("kv");
    for (;;) {
      try {
        context_.run();
        return;
      } catch (const std::exception& e) {
        // A handler let one through: our bug, which must not stop the others.
        spdlog::error("exception on the thread that moves KV: {}", e.what());
      }
    }
  }

  // --- the target

  asio::awaitable<void> accept() {
    asio::steady_timer pause(context_);
    for (;;) {
      tcp::socket socket(context_);
      error_code ec;
      co_await acceptor_.async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
      if (!acceptor_.is_open()) co_return;
      if (ec) {  // out of file descriptors, or the peer left already
        pause.expires_after(std::chrono::milliseconds(20));
        co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ec));
        continue;
      }
      if (strangers_ < kMaxStrangers) serve(std::move(socket));
    }
  }

  void serve(tcp::socket socket) {
    ++strangers_;
    const auto stranger = std::make_shared<bool>(true);
    const auto known = [this, stranger] {
      if (std::exchange(*stranger, false)) --strangers_;
    };
    serve_tcp_source(
        shared, std::move(socket),
        {.admit =
             [this, known](const std::shared_ptr<TcpSink>& sink, const KvSecret& secret) {
               known();
               return admit(sink, secret);
             },
         .ended = known});
  }

  // A second connection of the same way replaces the first.
  bool admit(const std::shared_ptr<TcpSink>& sink, const KvSecret& secret) {
    bool welcome = false;
    for (WayIn& way : ways_in_) {
      if (!equal(way.secret, secret)) continue;
      if (const auto former = way.sink.lock()) former->close();
      way.sink = sink;
      welcome = true;
    }
    if (!welcome) spdlog::warn("a connection for KV came without a secret of this instance's");
    return welcome;
  }

  // --- the source

  void call(const KvPeer& peer, WayOut& way) {
    way.source =
        call_tcp_sink(context_, shared, way.host, way.port, way.secret,
                      {.welcome = [this, peer] { reached(peer); },
                       .broken = [this, peer](const std::string& why) { broken(peer, why); }});
  }

  void reached(const KvPeer& peer) {
    WayOut& way = ways_out_.at(peer);
    way.retry = shared.options.first_retry;
    way.told.clear();
    spdlog::info("KV for instance {} goes over TCP to {}:{}", peer.instance.value, way.host,
                 way.port);
    const std::lock_guard lock(shared.telling);
    shared.reached.insert(peer);
  }

  void broken(const KvPeer& peer, const std::string& why) {
    WayOut& way = ways_out_.at(peer);
    way.source = nullptr;
    if (std::exchange(way.told, why) != why) {
      spdlog::warn("KV for instance {} goes over gRPC: {}:{}: {}", peer.instance.value, way.host,
                   way.port, why);
    }
    {
      const std::lock_guard lock(shared.telling);
      shared.reached.erase(peer);
    }
    way.again = std::make_unique<asio::steady_timer>(context_, way.retry);
    way.retry = std::min(2 * way.retry, kLastRetry);
    way.again->async_wait([this, peer](const error_code& ec) {
      const auto it = ec ? ways_out_.end() : ways_out_.find(peer);
      if (it != ways_out_.end() && !it->second.source) call(peer, it->second);
    });
  }

  void end(const KvPeer& peer) {
    {
      const std::lock_guard lock(shared.telling);
      shared.reached.erase(peer);
    }
    const auto it = ways_out_.find(peer);
    if (it == ways_out_.end()) return;
    it->second.again.reset();
    if (const auto source = std::exchange(it->second.source, nullptr)) source->close();
  }

  asio::io_context context_{1};
  asio::executor_work_guard<asio::io_context::executor_type> work_{context_.get_executor()};
  tcp::acceptor acceptor_;
  int port_ = 0;
  // Of the thread.
  int strangers_ = 0;
  std::vector<WayIn> ways_in_;
  std::map<KvPeer, WayOut> ways_out_;
  std::thread thread_;
};

TcpTransfer::TcpTransfer(const KvView& arena, TcpTransferOptions options,
                         std::function<void()> wake)
    : impl_(std::make_unique<Impl>(arena, options, std::move(wake))) {}
TcpTransfer::~TcpTransfer() = default;

Status TcpTransfer::listen(const std::string& host, const std::string& port) {
  return impl_->listen(host, port);
}
int TcpTransfer::port() const {
  return impl_->port();
}
std::string TcpTransfer::admit() {
  return impl_->admit();
}
void TcpTransfer::forget(const std::string& secret) {
  impl_->forget(secret);
}
void TcpTransfer::connect(const KvPeer& peer, const std::string& host, int port,
                          const std::string& secret) {
  impl_->connect(peer, host, port, secret);
}
void TcpTransfer::disconnect(const KvPeer& peer) {
  impl_->disconnect(peer);
}
bool TcpTransfer::reaches(const KvPeer& peer) const {
  const std::lock_guard lock(impl_->shared.telling);
  return impl_->shared.reached.contains(peer);
}

Status TcpTransfer::start(TransferTicket ticket, const TransferTarget& target,
                          std::vector<BlockMove> moves) {
  const KvPeer peer{target.instance, target.incarnation};
  if (!reaches(peer)) return fail(ErrorCode::kUnavailable, "there is no connection to the peer");
  const TcpTransferOptions& options = impl_->shared.options;
  if (impl_->jobs.size() >= options.max_in_flight) {
    return fail(ErrorCode::kBusy, fmt::format("{} transfers are on their way already (limit {})",
                                              impl_->jobs.size(), options.max_in_flight));
  }
  const std::int32_t blocks = impl_->shared.arena.num_blocks;
  for (const BlockMove& move : moves) {
    if (move.from.value < 0 || move.from.value >= blocks || move.to.value < 0) {
      return fail(ErrorCode::kInvalidArgument, fmt::format("from block {} of an arena of {} to "
                                                           "block {}",
                                                           move.from.value, blocks, move.to.value));
    }
  }
  auto job = std::make_shared<TcpJob>();
  job->ticket = ticket;
  job->key = target.key;
  job->moves = std::move(moves);
  impl_->jobs.emplace(ticket, job);
  if (job->moves.empty()) {
    impl_->shared.tell(*job, TransferOutcome::kDone, {});
  } else {
    impl_->send(peer, std::move(job));
  }
  return {};
}

void TcpTransfer::cancel(TransferTicket ticket) {
  const auto it = impl_->jobs.find(ticket);
  if (it == impl_->jobs.end()) return;
  {
    const std::lock_guard lock(impl_->shared.moving);
    it->second->cancelled = true;
  }
  impl_->look();
}

void TcpTransfer::poll(std::vector<TransferDone>& done) {
  std::vector<TransferDone> ended;
  {
    const std::lock_guard lock(impl_->shared.telling);
    std::swap(ended, impl_->shared.done);
  }
  for (TransferDone& told : ended) {
    impl_->jobs.erase(told.ticket);
    done.push_back(std::move(told));
  }
}

bool TcpTransfer::idle() const {
  return impl_->jobs.empty();
}
bool TcpTransfer::busy() const {
  const std::lock_guard lock(impl_->shared.telling);
  return !impl_->shared.done.empty();
}
void TcpTransfer::expect(const HandoffKey& key, std::span<const BlockId> blocks) {
  const std::lock_guard lock(impl_->shared.moving);
  impl_->shared.expected.expect(key, blocks);
}
void TcpTransfer::close(RequestId request) {
  const std::lock_guard lock(impl_->shared.moving);
  impl_->shared.expected.close(request);
}

}  // namespace sluice
