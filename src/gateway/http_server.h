// Listens, accepts, and gives each connection to an I/O thread in turn.
#pragma once

#include <atomic>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "gateway/exchange.h"
#include "gateway/gateway.h"
#include "gateway/io_threads.h"

namespace sluice {

// Answers one request. An exception that it lets through becomes a 500.
using HttpHandler = std::function<Task<void>(Exchange&)>;

class Connection;

// What all connections of a server share. `open` is per thread and touched by
// that thread only.
struct ConnectionContext {
  const GatewayLimits& limits;
  HttpHandler handler;
  std::atomic<std::int32_t> num_connections{0};
  std::atomic<bool> closing{false};
  std::vector<std::unordered_set<Connection*>> open;
};

class HttpServer final {
 public:
  HttpServer(IoThreads& threads, const GatewayLimits& limits, HttpHandler handler);
  ~HttpServer();

  // What connections from now on speak; null: plain HTTP. Any thread.
  void set_tls(std::shared_ptr<boost::asio::ssl::context> tls);
  // Binds every address of `host`; port 0 takes any that is free.
  [[nodiscard]] Status listen(const std::string& host, std::uint16_t port);
  [[nodiscard]] std::uint16_t port() const { return port_; }
  // No more connections; those that are open are closed. The threads must run.
  void close();

 private:
  Task<void> accept_loop(boost::asio::ip::tcp::acceptor& acceptor);
  void adopt(boost::asio::ip::tcp::socket socket, std::size_t thread);

  IoThreads& threads_;
  ConnectionContext context_;
  std::vector<boost::asio::ip::tcp::acceptor> acceptors_;  // on thread 0
  std::mutex tls_mutex_;
  std::shared_ptr<boost::asio::ssl::context> tls_;  // guarded by tls_mutex_
  std::uint16_t port_ = 0;
  std::size_t next_thread_ = 0;
};

}  // namespace sluice
