#include "gateway/tls.h"

#include <fmt/format.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace sluice {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;

constexpr std::array<unsigned char, 9> kHttp11{8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
constexpr unsigned char kHandshakeRecord = 22;

int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size,
                    const unsigned char* in, unsigned in_size, void*) {
  unsigned char* chosen = nullptr;
  const int found =
      SSL_select_next_proto(&chosen, out_size, kHttp11.data(), kHttp11.size(), in, in_size);
  if (found != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

Result<std::shared_ptr<ssl::context>> load_tls(const TlsFiles& files) {
  if (files.certificate.empty() || files.key.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "TLS needs a certificate and its key; 1 of the 2 is "
                "given");
  }
  auto context = std::make_shared<ssl::context>(ssl::context::tls_server);
  boost::system::error_code ec;
  context->set_options(ssl::context::default_workarounds | ssl::context::no_sslv2 |
                           ssl::context::no_sslv3 | ssl::context::no_tlsv1 |
                           ssl::context::no_tlsv1_1,
                       ec);
  SSL_CTX_set_alpn_select_cb(context->native_handle(), &choose_protocol, nullptr);
  const auto unusable = [&ec](const char* what, const std::string& file) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("the {} in {} cannot be used: {}", what, file, ec.message()));
  };
  context->use_certificate_chain_file(files.certificate, ec);
  if (ec) return unusable("certificate", files.certificate);
  context->use_private_key_file(files.key, ssl::context::pem, ec);  // and whether it is its key
  if (ec) return unusable("key", files.key);
  return context;
}

Task<ClientSocket::Speech> ClientSocket::first_speech() {
  error_code ec;
  co_await socket_.async_wait(Tcp::socket::wait_read,
                              asio::redirect_error(asio::use_awaitable, ec));
  if (ec) co_return Speech::kNothing;
  unsigned char first = 0;
  const std::size_t size = socket_.receive(asio::buffer(&first, 1), MSG_PEEK, ec);
  if (ec || size == 0) co_return Speech::kNothing;
  co_return first == kHandshakeRecord ? Speech::kTls : Speech::kOther;
}

Task<boost::system::error_code> ClientSocket::handshake(ssl::context& context) {
  tls_.emplace(socket_, context);
  error_code ec;
  co_await tls_->async_handshake(ssl::stream_base::server,
                                 asio::redirect_error(asio::use_awaitable, ec));
  co_return ec;
}

Task<void> ClientSocket::say_goodbye() {
  error_code ignored;
  co_await tls_->async_shutdown(asio::redirect_error(asio::use_awaitable, ignored));
}

}  // namespace sluice
