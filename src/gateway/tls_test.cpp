// HTTPS: what clients get, and what those get who do not speak it well. Certificates are made
// here.
#include "gateway/tls.h"

#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/rng.h"
#include "gateway/test_support.h"

namespace sluice::test {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;
using namespace std::chrono_literals;
using Json = nlohmann::ordered_json;

// A folder with a certificate for 127.0.0.1 that vouches for itself, and its key.
class Certificate {
 public:
  explicit Certificate(const std::string& name)
      : folder_(std::filesystem::temp_directory_path() /
                ("sluice-tls-" + std::to_string(::getpid()) + "-" + name)) {
    std::filesystem::create_directories(folder_);
    write(name);
  }
  ~Certificate() { std::filesystem::remove_all(folder_); }
  Certificate(const Certificate&) = delete;
  Certificate& operator=(const Certificate&) = delete;

  // Another one, in the same files.
  void write(const std::string& name) const {
    EVP_PKEY* key = EVP_EC_gen("P-256");
    X509* certificate = X509_new();
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    X509_NAME* subject = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate, subject);
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
    X509_add_ext(certificate, names, -1);
    X509_EXTENSION_free(names);
    X509_sign(certificate, key, EVP_sha256());
    BIO* out = BIO_new_file(files().certificate.c_str(), "w");
    PEM_write_bio_X509(out, certificate);
    BIO_free(out);
    out = BIO_new_file(files().key.c_str(), "w");
    PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr);
    BIO_free(out);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  [[nodiscard]] TlsFiles files() const {
    return {folder_ / "certificate.pem", folder_ / "key.pem"};
  }

 private:
  const std::filesystem::path folder_;
};

GatewayOptions secured(const Certificate& certificate) {
  GatewayOptions options;
  options.tls = certificate.files();
  return options;
}

// A blocking client that trusts one certificate alone.
class SecureClient {
 public:
  SecureClient(std::uint16_t port, const TlsFiles& trusted, const std::string& protocols = "")
      : context_(ssl::context::tls_client), stream_(io_, context_) {
    context_.load_verify_file(trusted.certificate);
    stream_.next_layer().connect({asio::ip::make_address("127.0.0.1"), port});
    stream_.set_verify_mode(ssl::verify_peer, failed_);
    if (!protocols.empty()) {
      ::SSL_set_alpn_protos(stream_.native_handle(),
                            reinterpret_cast<const unsigned char*>(protocols.data()),
                            static_cast<unsigned>(protocols.size()));
    }
    stream_.handshake(ssl::stream_base::client, failed_);
  }
  [[nodiscard]] bool connected() const { return !failed_; }
  [[nodiscard]] std::string protocol() {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    ::SSL_get0_alpn_selected(stream_.native_handle(), &name, &size);
    return {reinterpret_cast<const char*>(name), size};
  }
  [[nodiscard]] std::string name() {
    X509* peer = ::SSL_get1_peer_certificate(stream_.native_handle());
    char text[100] = {};
    X509_NAME_get_text_by_NID(X509_get_subject_name(peer), NID_commonName, text, sizeof text);
    X509_free(peer);
    return text;
  }
  void send(const std::string& bytes) { asio::write(stream_, asio::buffer(bytes), failed_); }
  // Until `text` has come; false: the end came first.
  bool read_until(const std::string& text) {
    char piece[4096];
    while (got_.find(text) == std::string::npos && !failed_) {
      const std::size_t size = stream_.read_some(asio::buffer(piece), failed_);
      got_.append(piece, size);
    }
    return got_.find(text) != std::string::npos;
  }
  // All until the server says goodbye, which a lost connection does not.
  [[nodiscard]] bool ends_well() {
    (void)read_until("\x01 never");
    return failed_ == asio::error::eof;
  }
  [[nodiscard]] std::string take() { return std::exchange(got_, {}); }
  void leave() { stream_.next_layer().close(); }

 private:
  asio::io_context io_;
  ssl::context context_;
  ssl::stream<tcp::socket> stream_;
  error_code failed_;
  std::string got_;
};

std::string chat(const std::string& more = {}) {
  return R"({"messages":[{"role":"user","content":"Hi"}])" + more + "}";
}

constexpr const char* kChat = "/v1/chat/completions";

TEST(Tls, AnswersStreamsAndKeepsTheConnection) {
  const Certificate certificate("first");
  Bench bench(secured(certificate));
  SecureClient client(bench.gateway.port(), certificate.files(), "\x02h2\x08http/1.1");
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.protocol(), "http/1.1");
  client.send(http_text("GET", "/health") + http_text("GET", "/nothing"));  // pipelined
  EXPECT_TRUE(client.read_until(R"({"status":"ok"})"));
  EXPECT_TRUE(client.read_until("404 Not Found"));
  for (int i = 0; i < 3; ++i) {
    (void)client.take();
    client.send(http_text("POST", kChat, chat(R"(,"stream":true)")));
    EXPECT_TRUE(client.read_until("data: [DONE]\n\n\r\n0\r\n\r\n"));
  }
  client.send(http_text("GET", "/health", {}, "Connection: close\r\n"));
  EXPECT_TRUE(client.ends_well());
}

TEST(Tls, LongBodiesPassBothWays) {
  const Certificate certificate("long");
  Bench bench(secured(certificate));
  bench.serving.set_script({.reply = std::string(1000, 'x')});
  SecureClient client(bench.gateway.port(), certificate.files());
  const std::string text(300'000, 'a');
  client.send(http_text("POST", "/tokenize", R"({"prompt":")" + text + "\"}"));
  ASSERT_TRUE(client.read_until("\"count\":300"));
  (void)client.take();
  client.send(http_text("POST", kChat, chat(R"(,"max_tokens":1000)")));
  EXPECT_TRUE(client.read_until(std::string(1000, 'x')));
}

TEST(Tls, WhoLeavesIsNoticed) {
  const Certificate certificate("leaving");
  Bench bench(secured(certificate));
  bench.serving.set_script({.endless = true});
  for (const bool stream : {true, false}) {
    SecureClient client(bench.gateway.port(), certificate.files());
    client.send(http_text("POST", kChat, chat(stream ? R"(,"stream":true)" : "")));
    if (stream) {
      EXPECT_TRUE(client.read_until("data: "));
    }
    client.leave();
    EXPECT_TRUE(bench.serving.wait_idle());
  }
}

TEST(Tls, PlainHttpIsToldWhatToDo) {
  const Certificate certificate("plain");
  Bench bench(secured(certificate));
  Client client = bench.client();
  const Response response = client.request("GET", "/health");
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Json::parse(response.body)["error"]["code"], "tls_required");
  EXPECT_TRUE(client.at_end());
}

TEST(Tls, OtherProtocolsAloneAreRefused) {
  const Certificate certificate("protocols");
  Bench bench(secured(certificate));
  EXPECT_FALSE(SecureClient(bench.gateway.port(), certificate.files(), "\x02h2").connected());
  EXPECT_TRUE(SecureClient(bench.gateway.port(), certificate.files()).connected());
  const Certificate other("other");
  EXPECT_FALSE(SecureClient(bench.gateway.port(), other.files()).connected());
}

TEST(Tls, AHandshakeThatDoesNotComeIsNotWaitedFor) {
  const Certificate certificate("slow");
  GatewayOptions options = secured(certificate);
  options.limits.header_timeout = 200ms;
  Bench bench(options);
  Client silent = bench.client();
  Client half = bench.client();
  half.send(std::string("\x16\x03\x01\x02\x00\x01", 6));
  EXPECT_TRUE(silent.at_end());
  EXPECT_TRUE(half.at_end());
  EXPECT_TRUE(SecureClient(bench.gateway.port(), certificate.files()).connected());
}

TEST(Tls, NoBytesHurt) {
  const Certificate certificate("bytes");
  GatewayOptions options = secured(certificate);
  options.limits.header_timeout = 200ms;
  Bench bench(options);
  Rng rng(7);
  for (int i = 0; i < 60; ++i) {
    Client client = bench.client();
    std::string bytes("\x16\x03\x01\x00\xff\x01\x00\x00\xfb\x03\x03", 11);
    if (i % 3 == 0) bytes.resize(1);
    for (int b = 0; b < 300; ++b) bytes += static_cast<char>(rng());
    client.send(bytes);
    if (i % 2 == 0) client.reset();
  }
  EXPECT_TRUE(SecureClient(bench.gateway.port(), certificate.files()).connected());
}

TEST(Tls, ACertificateIsReadAgain) {
  const Certificate certificate("before");
  Bench bench(secured(certificate));
  SecureClient old(bench.gateway.port(), certificate.files());
  ASSERT_TRUE(old.connected());
  EXPECT_EQ(old.name(), "before");
  certificate.write("after");
  ASSERT_TRUE(bench.gateway.reload_certificate());
  SecureClient fresh(bench.gateway.port(), certificate.files());
  ASSERT_TRUE(fresh.connected());
  EXPECT_EQ(fresh.name(), "after");
  old.send(http_text("GET", "/health"));
  EXPECT_TRUE(old.read_until("200 OK")) << "who was connected stays so";

  std::filesystem::resize_file(certificate.files().key, 20);
  const Status broken = bench.gateway.reload_certificate();
  ASSERT_FALSE(broken);
  EXPECT_NE(broken.error().message.find("key.pem"), std::string::npos);
  EXPECT_TRUE(SecureClient(bench.gateway.port(), certificate.files()).connected());
}

TEST(Tls, FilesThatCannotBeUsedAreNamed) {
  const Certificate one("one");
  const Certificate two("two");
  const auto error = [](const TlsFiles& files) { return load_tls(files).error(); };
  EXPECT_TRUE(load_tls(one.files()));
  for (const auto& [certificate, key, named] :
       {std::array<std::string, 3>{one.files().certificate, "", "1 of the 2"},
        {"", one.files().key, "1 of the 2"},
        {"nothing.pem", one.files().key, "certificate in nothing.pem"},
        {one.files().certificate, "nothing.pem", "key in nothing.pem"},
        {one.files().certificate, two.files().key, "key in"},
        {one.files().key, one.files().key, "certificate in"}}) {
    EXPECT_EQ(error({certificate, key}).code, ErrorCode::kInvalidArgument);
    EXPECT_NE(error({certificate, key}).message.find(named), std::string::npos)
        << error({certificate, key}).message;
  }
}

}  // namespace
}  // namespace sluice::test
