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
#include <map>
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

  void send(const KvPeer& peer, std::shared_ptr<KvJob> job) {
    post([this, peer, job = std::move(job)] {
      const auto it = ways_out_.find(peer);
      if (it != ways_out_.end() && it->second.source) return it->second.source->add(job);
      shared.fail_job(*job, "the connection to the peer was lost");
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
    shared.set_reached(peer, true);
  }

  void broken(const KvPeer& peer, const std::string& why) {
    WayOut& way = ways_out_.at(peer);
    way.source = nullptr;
    if (std::exchange(way.told, why) != why) {
      spdlog::warn("KV for instance {} does not go over TCP: {}:{}: {}", peer.instance.value,
                   way.host, way.port, why);
    }
    shared.set_reached(peer, false);
    way.again = std::make_unique<asio::steady_timer>(context_, way.retry);
    way.retry = std::min(2 * way.retry, kLastRetry);
    way.again->async_wait([this, peer](const error_code& ec) {
      const auto it = ec ? ways_out_.end() : ways_out_.find(peer);
      if (it != ways_out_.end() && !it->second.source) call(peer, it->second);
    });
  }

  void end(const KvPeer& peer) {
    shared.set_reached(peer, false);
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
    : TcpTransfer(std::make_unique<Impl>(arena, options, std::move(wake))) {}
TcpTransfer::TcpTransfer(std::unique_ptr<Impl> impl)
    : KvJobs(impl->shared, impl->shared.options.max_in_flight), impl_(std::move(impl)) {}
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
void TcpTransfer::send(const KvPeer& peer, std::shared_ptr<KvJob> job) {
  impl_->send(peer, std::move(job));
}
void TcpTransfer::look() {
  impl_->look();
}

}  // namespace sluice
