#include "gateway/connection.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <ctime>
#include <optional>
#include <random>

#include "base/rng.h"
#include "gateway/api_error.h"
#include "gateway/tls.h"

namespace sluice {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// A client may send its next requests early; above this we stop reading ahead,
// and with it stop seeing whether the client is still there.
constexpr std::size_t kMaxReadAhead = 64 << 10;
constexpr Duration kLingerTime = std::chrono::seconds(2);

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm tm{};
  gmtime_r(&now, &tm);
  char text[40];
  const std::size_t size = std::strftime(text, sizeof text, "%a, %d %b %Y %H:%M:%S GMT", &tm);
  return {text, size};
}

std::string make_request_id() {
  thread_local Rng rng{std::random_device{}() + (std::uint64_t{std::random_device{}()} << 32)};
  return fmt::format("req-{:016x}{:08x}", rng(), rng() >> 32);
}

// Ids go into logs and headers: printable, without spaces, not too long.
bool good_request_id(std::string_view id) {
  return !id.empty() && id.size() <= 128 &&
         std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

std::string_view as_view(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

class Connection final : public Exchange, public std::enable_shared_from_this<Connection> {
 public:
  Connection(ConnectionContext& context, std::size_t thread, tcp::socket socket,
             std::shared_ptr<asio::ssl::context> tls)
      : context_(context),
        thread_(thread),
        socket_(std::move(socket)),
        tls_(std::move(tls)),
        deadline_(socket_.get_executor()),
        watch_done_(socket_.get_executor()) {
    context_.open[thread_].insert(this);
  }
  ~Connection() override {
    context_.open[thread_].erase(this);
    context_.num_connections.fetch_sub(1);
  }

  Task<void> run();

  const HttpRequest& request() const override { return request_; }
  HttpRequest& request() override { return request_; }
  std::size_t thread_index() const override { return thread_; }
  asio::any_io_executor executor() override { return socket_.get_executor(); }
  void add_header(std::string name, std::string value) override {
    headers_.emplace_back(std::move(name), std::move(value));
  }
  void close_after() override { keep_alive_ = false; }
  Task<bool> respond(const HttpResponse& response) override;
  bool begin_stream(std::string_view content_type) override;
  Task<bool> write(std::string_view bytes) override;
  Task<bool> end_stream() override;
  void watch(std::function<void()> on_gone) override;
  bool gone() const override { return gone_; }
  void abort() override;

 private:
  using Parser = http::request_parser<http::string_body>;

  Task<bool> open();
  Task<bool> read_request();
  Task<bool> read_first_byte();
  Task<void> refuse(error_code ec);
  Task<void> answer_unread(const ApiError& error);
  void take(Parser& parser);
  Task<void> handle();
  std::string head(int status, std::string_view content_type) const;
  Task<bool> flush();
  Task<void> watch_loop();
  Task<void> stop_watch();
  Task<void> part();
  void set_gone();
  // Calls socket_.cancel() when the time is over, unless disarmed before.
  void arm(Duration limit);
  void disarm();

  ConnectionContext& context_;
  const std::size_t thread_;
  ClientSocket socket_;
  const std::shared_ptr<asio::ssl::context> tls_;  // null: plain HTTP
  boost::beast::flat_buffer input_;
  asio::steady_timer deadline_;
  std::uint64_t deadline_number_ = 0;
  bool timed_out_ = false;

  // Of the present request.
  HttpRequest request_;
  std::vector<std::pair<std::string, std::string>> headers_;
  std::string pending_;  // bytes that go out with the next write
  bool http10_ = false;
  bool keep_alive_ = true;
  bool started_ = false;  // something of the answer was produced
  bool broken_ = false;   // nothing more can be sent
  bool unread_ = false;   // input was left unread on purpose

  std::function<void()> on_gone_;
  bool gone_ = false;
  bool watching_ = false;
  bool stop_watch_ = false;
  asio::steady_timer watch_done_;
};

void Connection::arm(Duration limit) {
  timed_out_ = false;
  deadline_.expires_after(limit);
  deadline_.async_wait(
      [self = shared_from_this(), number = ++deadline_number_](const error_code& ec) {
        if (ec || number != self->deadline_number_) return;
        self->timed_out_ = true;
        error_code ignored;
        self->socket_.bare().cancel(ignored);
      });
}

void Connection::disarm() {
  ++deadline_number_;
  error_code ignored;
  deadline_.cancel(ignored);
}

Task<void> Connection::run() {
  const bool opened = co_await open();
  while (opened && !context_.closing && socket_.bare().is_open()) {
    if (!co_await read_request()) break;
    co_await handle();
    co_await stop_watch();
    if (!keep_alive_ || broken_ || gone_) break;
  }
  disarm();
  if (!broken_) co_await part();
  error_code ignored;
  socket_.bare().shutdown(tcp::socket::shutdown_both, ignored);
  socket_.bare().close(ignored);
}

// The handshake, where there is TLS. False: there is nobody to serve.
Task<bool> Connection::open() {
  if (!tls_) co_return true;
  error_code ec;
  arm(context_.limits.header_timeout);
  const ClientSocket::Speech speech = co_await socket_.first_speech();
  if (speech == ClientSocket::Speech::kTls) ec = co_await socket_.handshake(*tls_);
  disarm();
  if (speech == ClientSocket::Speech::kOther) {
    ApiError error;
    error.type = "invalid_request_error";
    error.message = "this port speaks TLS: its address begins with https://";
    error.code = "tls_required";
    co_await answer_unread(error);
  }
  if (ec) {
    spdlog::debug("gateway: a TLS handshake failed: {}", timed_out_ ? "too slow" : ec.message());
    abort();
  }
  co_return speech == ClientSocket::Speech::kTls && !ec;
}

Task<bool> Connection::read_first_byte() {
  if (input_.size() > 0) co_return true;
  error_code ec;
  arm(context_.limits.idle_timeout);
  const std::size_t size = co_await socket_.async_read_some(
      input_.prepare(8192), asio::redirect_error(asio::use_awaitable, ec));
  disarm();
  input_.commit(size);
  co_return !ec && size > 0;
}

Task<bool> Connection::read_request() {
  if (!co_await read_first_byte()) co_return false;
  request_ = {};
  headers_.clear();
  started_ = false;
  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(context_.limits.max_header_bytes));
  parser.body_limit(context_.limits.max_body_bytes);
  error_code ec;
  arm(context_.limits.header_timeout);
  co_await http::async_read_header(socket_, input_, parser,
                                   asio::redirect_error(asio::use_awaitable, ec));
  disarm();
  if (ec) {
    co_await refuse(ec);
    co_return false;
  }
  if (!parser.is_done()) {
    if (as_view(parser.get()[http::field::expect]) == "100-continue") {
      pending_ = "HTTP/1.1 100 Continue\r\n\r\n";
      if (!co_await flush()) co_return false;
    }
    arm(context_.limits.body_timeout);
    co_await http::async_read(socket_, input_, parser,
                              asio::redirect_error(asio::use_awaitable, ec));
    disarm();
    if (ec) {
      co_await refuse(ec);
      co_return false;
    }
  }
  take(parser);
  co_return true;
}

// Tells the client why its request cannot be read.
Task<void> Connection::refuse(error_code ec) {
  keep_alive_ = false;
  ApiError error;
  error.type = "invalid_request_error";
  if (timed_out_) {
    error.status = 408;
    error.message = fmt::format(
        "the request did not arrive in time (header {:.0f} s, body {:.0f} s)",
        to_seconds(context_.limits.header_timeout), to_seconds(context_.limits.body_timeout));
    error.code = "request_timeout";
  } else if (ec == http::error::header_limit || ec == http::error::buffer_overflow) {
    error.status = 431;
    error.message = fmt::format("the request's header is larger than the limit of {} bytes",
                                context_.limits.max_header_bytes);
    error.code = "header_too_large";
  } else if (ec == http::error::body_limit) {
    error.status = 413;
    error.message = fmt::format("the request's body is larger than the limit of {} bytes",
                                context_.limits.max_body_bytes);
    error.code = "body_too_large";
  } else if (ec == http::error::partial_message || ec == http::error::end_of_stream ||
             ec.category() != make_error_code(http::error::partial_message).category()) {
    co_return;  // the client left in the middle
  } else {
    error.message = fmt::format("not an HTTP request: {}", ec.message());
    error.code = "bad_http";
  }
  co_await answer_unread(error);
}

Task<void> Connection::answer_unread(const ApiError& error) {
  keep_alive_ = false;
  unread_ = true;
  request_.request_id = make_request_id();
  HttpResponse response;
  response.status = error.status;
  response.body = to_json(error);
  co_await respond(response);
}

void Connection::take(Parser& parser) {
  auto& message = parser.get();
  http10_ = message.version() < 11;
  keep_alive_ = message.keep_alive();
  request_.method = as_view(message.method_string());
  std::string_view target = as_view(message.target());
  if (target.substr(0, 7) == "http://") {  // as proxies send it
    const auto slash = target.find('/', 7);
    target = slash == std::string_view::npos ? "/" : target.substr(slash);
  }
  if (!decode_path(target, request_.path, request_.query)) request_.path.clear();
  request_.authorization = as_view(message[http::field::authorization]);
  request_.api_key = as_view(message["x-api-key"]);
  request_.objective = as_view(message["x-gateway-inference-objective"]);
  request_.fairness_id = as_view(message["x-gateway-inference-fairness-id"]);
  request_.origin = as_view(message[http::field::origin]);
  const std::string_view id = as_view(message["x-request-id"]);
  request_.request_id = good_request_id(id) ? std::string(id) : make_request_id();
  const std::string_view trace = as_view(message["traceparent"]);
  request_.traceparent = good_traceparent(trace) ? trace : std::string_view();
  request_.client.reset();
  request_.body = std::move(message.body());
}

Task<void> Connection::handle() {
  bool failed = false;
  try {
    co_await context_.handler(*this);
  } catch (const std::exception& e) {
    spdlog::error("gateway: {} {}: {}", request_.method, request_.path, e.what());
    failed = true;
  }
  if (!failed) co_return;
  if (started_) {
    abort();
    co_return;
  }
  HttpResponse response;
  response.status = 500;
  response.body =
      to_json(ApiError{500, "the server failed on this request", "server_error", {}, "internal"});
  co_await respond(response);
}

std::string Connection::head(int status, std::string_view content_type) const {
  std::string text = fmt::format("HTTP/1.{} {} {}\r\nDate: {}\r\nServer: sluice\r\n",
                                 http10_ ? 0 : 1, status, http_reason(status), http_date());
  if (!content_type.empty()) text += fmt::format("Content-Type: {}\r\n", content_type);
  text += fmt::format("x-request-id: {}\r\n", request_.request_id);
  for (const auto& [name, value] : headers_) text += fmt::format("{}: {}\r\n", name, value);
  return text;
}

Task<bool> Connection::respond(const HttpResponse& response) {
  started_ = true;
  headers_.insert(headers_.end(), response.headers.begin(), response.headers.end());
  if (context_.closing) keep_alive_ = false;
  pending_ = head(response.status, response.body.empty() ? "" : response.content_type);
  if (response.status != 204) {
    pending_ += fmt::format("Content-Length: {}\r\n", response.body.size());
  }
  if (!keep_alive_) pending_ += "Connection: close\r\n";
  if (keep_alive_ && http10_) pending_ += "Connection: keep-alive\r\n";
  pending_ += "\r\n";
  if (request_.method != "HEAD") pending_ += response.body;
  return flush();
}

bool Connection::begin_stream(std::string_view content_type) {
  started_ = true;
  pending_ = head(200, content_type);
  pending_ += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  if (http10_) keep_alive_ = false;  // there, the connection's end is the answer's end
  if (!http10_) pending_ += "Transfer-Encoding: chunked\r\n";
  if (!keep_alive_) pending_ += "Connection: close\r\n";
  pending_ += "\r\n";
  return !broken_;
}

Task<bool> Connection::write(std::string_view bytes) {
  if (http10_) {
    pending_ += bytes;
  } else if (!bytes.empty()) {  // an empty chunk would be the end
    fmt::format_to(std::back_inserter(pending_), "{:x}\r\n", bytes.size());
    pending_ += bytes;
    pending_ += "\r\n";
  }
  return flush();
}

Task<bool> Connection::end_stream() {
  if (!http10_) pending_ += "0\r\n\r\n";
  return flush();
}

// Sends `pending_`. Most writes fit the socket's buffer: then no timer and no
// wait are needed.
Task<bool> Connection::flush() {
  std::string_view bytes = pending_;
  while (!bytes.empty() && !broken_) {
    error_code ec;
    std::size_t size = 0;
    if (socket_.secure()) {
      arm(context_.limits.write_timeout);
      size = co_await socket_.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                                               asio::redirect_error(asio::use_awaitable, ec));
      disarm();
    } else {
      size = socket_.bare().write_some(asio::buffer(bytes.data(), bytes.size()), ec);
    }
    if (!ec) {
      bytes.remove_prefix(size);
      continue;
    }
    if (ec == asio::error::would_block || ec == asio::error::try_again) {
      arm(context_.limits.write_timeout);
      co_await socket_.bare().async_wait(tcp::socket::wait_write,
                                         asio::redirect_error(asio::use_awaitable, ec));
      disarm();
    }
    if (ec) {  // the client left, or does not read
      abort();
      break;
    }
  }
  pending_.clear();
  co_return !broken_;
}

void Connection::watch(std::function<void()> on_gone) {
  on_gone_ = std::move(on_gone);
  if (watching_) return;
  watching_ = true;
  asio::co_spawn(
      socket_.get_executor(), [self = shared_from_this()] { return self->watch_loop(); },
      asio::detached);
}

Task<void> Connection::watch_loop() {
  while (!stop_watch_ && input_.size() < kMaxReadAhead) {
    error_code ec;
    const std::size_t size = co_await socket_.async_read_some(
        input_.prepare(4096), asio::redirect_error(asio::use_awaitable, ec));
    input_.commit(size);
    // A write that waits too long cancels this read as well; flush() deals with it.
    if (ec == asio::error::operation_aborted && !broken_) {
      if (stop_watch_) break;
      continue;
    }
    if (ec) {
      if (!stop_watch_) set_gone();
      break;
    }
  }
  watching_ = false;
  error_code ignored;
  watch_done_.cancel(ignored);
}

Task<void> Connection::stop_watch() {
  on_gone_ = nullptr;
  stop_watch_ = true;
  while (watching_) {
    error_code ignored;
    watch_done_.expires_at(std::chrono::steady_clock::time_point::max());
    socket_.bare().cancel(ignored);
    co_await watch_done_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  stop_watch_ = false;
}

void Connection::set_gone() {
  gone_ = true;
  if (auto call = std::exchange(on_gone_, nullptr)) call();
}

void Connection::abort() {
  broken_ = true;
  error_code ignored;
  socket_.bare().close(ignored);
}

// A TLS client is told that this is the end. Closing with unread input would reset the connection,
// and the client might never see the answer: read on for a moment.
Task<void> Connection::part() {
  if (socket_.secure()) {
    arm(kLingerTime);
    co_await socket_.say_goodbye();
    disarm();
  }
  if (!unread_) co_return;
  error_code ec;
  socket_.bare().shutdown(tcp::socket::shutdown_send, ec);
  arm(kLingerTime);
  while (!ec) {
    input_.clear();
    co_await socket_.bare().async_read_some(input_.prepare(65536),
                                            asio::redirect_error(asio::use_awaitable, ec));
  }
  disarm();
}

void start_connection(ConnectionContext& context, std::size_t thread, tcp::socket socket,
                      std::shared_ptr<asio::ssl::context> tls) {
  auto connection =
      std::make_shared<Connection>(context, thread, std::move(socket), std::move(tls));
  auto executor = connection->executor();
  asio::co_spawn(
      executor, [connection = std::move(connection)]() mutable { return connection->run(); },
      asio::detached);
}

void abort_connections(ConnectionContext& context, std::size_t thread) {
  const std::vector<Connection*> all(context.open[thread].begin(), context.open[thread].end());
  for (Connection* connection : all) connection->abort();
}

}  // namespace sluice
