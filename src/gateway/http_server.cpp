#include "gateway/http_server.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>

#include "gateway/api_error.h"
#include "gateway/connection.h"

namespace sluice {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

HttpServer::HttpServer(IoThreads& threads, const GatewayLimits& limits, HttpHandler handler)
    : threads_(threads), context_{limits, std::move(handler), {}, {}, {}} {
  context_.open.resize(threads.size());
}

HttpServer::~HttpServer() = default;

namespace {

error_code open_acceptor(tcp::acceptor& acceptor, const tcp::endpoint& endpoint) {
  error_code ec;
  acceptor.open(endpoint.protocol(), ec);
  if (ec) return ec;
  acceptor.set_option(tcp::acceptor::reuse_address(true), ec);
  if (endpoint.protocol() == tcp::v6()) acceptor.set_option(asio::ip::v6_only(true), ec);
  acceptor.bind(endpoint, ec);
  if (ec) return ec;
  acceptor.listen(1024, ec);
  return ec;
}

}  // namespace

void HttpServer::set_tls(std::shared_ptr<asio::ssl::context> tls) {
  const std::lock_guard lock(tls_mutex_);
  tls_ = std::move(tls);
}

Status HttpServer::listen(const std::string& host, std::uint16_t port) {
  error_code ec;
  tcp::resolver resolver(threads_.context(0));
  const auto found = resolver.resolve(host, std::to_string(port), tcp::resolver::passive, ec);
  if (ec) {
    return fail(ErrorCode::kUnavailable, fmt::format("cannot resolve {}: {}", host, ec.message()));
  }
  error_code last;
  for (const auto& entry : found) {
    tcp::endpoint endpoint = entry.endpoint();
    if (port_ != 0) endpoint.port(port_);
    tcp::acceptor acceptor(threads_.context(0));
    if (const error_code failed = open_acceptor(acceptor, endpoint)) {
      last = failed;
      continue;
    }
    port_ = acceptor.local_endpoint(ec).port();
    acceptors_.push_back(std::move(acceptor));
  }
  if (acceptors_.empty()) {
    return fail(ErrorCode::kUnavailable,
                fmt::format("cannot listen on {}:{}: {}", host, port, last.message()));
  }
  for (auto& acceptor : acceptors_) {
    asio::co_spawn(threads_.context(0), accept_loop(acceptor), asio::detached);
  }
  return {};
}

Task<void> HttpServer::accept_loop(tcp::acceptor& acceptor) {
  asio::steady_timer pause(threads_.context(0));
  for (;;) {
    const std::size_t thread = next_thread_++ % threads_.size();
    tcp::socket socket(threads_.context(thread));
    error_code ec;
    co_await acceptor.async_accept(socket, asio::redirect_error(asio::use_awaitable, ec));
    if (context_.closing || !acceptor.is_open()) co_return;
    if (ec) {  // out of file descriptors, or the peer left already
      pause.expires_after(std::chrono::milliseconds(20));
      error_code ignored;
      co_await pause.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      continue;
    }
    adopt(std::move(socket), thread);
  }
}

void HttpServer::adopt(tcp::socket socket, std::size_t thread) {
  error_code ec;
  socket.set_option(tcp::no_delay(true), ec);
  if (context_.limits.send_buffer_bytes > 0) {
    socket.set_option(asio::socket_base::send_buffer_size(context_.limits.send_buffer_bytes), ec);
  }
  socket.non_blocking(true, ec);
  std::shared_ptr<asio::ssl::context> tls;
  {
    const std::lock_guard lock(tls_mutex_);
    tls = tls_;
  }
  if (context_.num_connections.load() >= context_.limits.max_connections) {
    if (tls) return;  // a handshake for the sake of a refusal would be a way to load the server
    const std::string body = to_json(ApiError{
        503,
        fmt::format("the limit of {} connections is reached", context_.limits.max_connections),
        "service_unavailable",
        {},
        "too_many_connections"});
    const std::string answer = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: "
        "{}\r\nRetry-After: 1\r\nConnection: close\r\n\r\n{}",
        body.size(), body);
    socket.write_some(asio::buffer(answer), ec);
    socket.shutdown(tcp::socket::shutdown_send, ec);
    return;
  }
  context_.num_connections.fetch_add(1);
  asio::post(threads_.context(thread),
             [this, thread, s = std::move(socket), t = std::move(tls)]() mutable {
               start_connection(context_, thread, std::move(s), std::move(t));
             });
}

void HttpServer::close() {
  context_.closing = true;
  asio::post(threads_.context(0), [this] {
    error_code ec;
    for (auto& acceptor : acceptors_) acceptor.close(ec);
  });
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    asio::post(threads_.context(i), [this, i] { abort_connections(context_, i); });
  }
}

}  // namespace sluice
