// TLS for clients: a certificate with its key as what handshakes need, and the one socket type
// that a connection uses with TLS or without.
//
// A socket belongs to its connection's I/O thread; one read and one write may be under way.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/result.h"
#include "gateway/gateway.h"
#include "gateway/task.h"

namespace sluice {

// TLS 1.2 and later, and HTTP/1.1 for who asks by ALPN; who asks for other protocols alone
// is refused. kInvalidArgument: names the file that cannot be used.
[[nodiscard]] Result<std::shared_ptr<boost::asio::ssl::context>> load_tls(const TlsFiles& files);

class ClientSocket {  // not final: Asio asks its type by deriving from it
 public:
  using Tcp = boost::asio::ip::tcp;
  using error_code = boost::system::error_code;
  using executor_type = Tcp::socket::executor_type;

  explicit ClientSocket(Tcp::socket socket) : socket_(std::move(socket)) {}

  enum class Speech : std::uint8_t { kNothing, kTls, kOther };
  // By the first byte, which stays to be read. kNothing: the client left, or it was cancelled.
  [[nodiscard]] Task<Speech> first_speech();
  // All that is read and written from here on is encrypted.
  [[nodiscard]] Task<error_code> handshake(boost::asio::ssl::context& context);
  // Tells the client that nothing more comes, and waits until it says so too. Nothing is
  // read or written encrypted after it.
  [[nodiscard]] Task<void> say_goodbye();
  [[nodiscard]] bool secure() const { return tls_.has_value(); }

  [[nodiscard]] executor_type get_executor() { return socket_.get_executor(); }
  template <class Buffers, class Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    if (tls_) return tls_->async_read_some(buffers, std::forward<Token>(token));
    return socket_.async_read_some(buffers, std::forward<Token>(token));
  }
  // Of a secure one alone: a TLS record cannot be written in part.
  template <class Buffers, class Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return tls_->async_write_some(buffers, std::forward<Token>(token));
  }
  // The bare one below. To cancel it cancels what is under way above.
  [[nodiscard]] Tcp::socket& bare() { return socket_; }

 private:
  Tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<Tcp::socket&>> tls_;
};

}  // namespace sluice
