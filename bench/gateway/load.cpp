#include "load.h"

// First: it knows how to include Asio 1.74.
// clang-format off
#include "gateway/task.h"
// clang-format on

#include <fmt/format.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <memory>

namespace sluice {

namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using Clock = std::chrono::steady_clock;
using asio::ip::tcp;

double ms_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

// Events with text begin so; the last one, "[DONE]", and an end's usage do not count.
std::int64_t count_events(std::string_view text) {
  constexpr std::string_view kEvent = "data: {";
  std::int64_t found = 0;
  for (auto at = text.find(kEvent); at != std::string_view::npos;
       at = text.find(kEvent, at + kEvent.size())) {
    ++found;
  }
  return found;
}

class Loader {
 public:
  explicit Loader(const LoadOptions& options) : options_(options) {
    std::string prompt;
    for (int i = 0; i < options.prompt_words; ++i) prompt += "water ";
    request_.method(http::verb::post);
    request_.target("/v1/completions");
    request_.version(11);
    request_.set(http::field::host, "127.0.0.1");
    request_.set(http::field::content_type, "application/json");
    request_.body() = fmt::format(
        R"({{"model":"{}","prompt":"{}","max_tokens":{},"ignore_eos":true,"stream":true}})",
        options.model, prompt, options.tokens);
    request_.prepare_payload();
  }

  LoadResult run() {
    begin_ = Clock::now();
    measured_from_ = begin_ + std::chrono::seconds(1);
    end_ = measured_from_ +
           std::chrono::nanoseconds(static_cast<std::int64_t>(options_.seconds * 1e9));
    for (int i = 0; i < options_.streams; ++i) {
      asio::co_spawn(io_, ask_on(i), asio::detached);
    }
    io_.run();
    result_.seconds = options_.seconds;
    return std::move(result_);
  }

 private:
  // One connection's requests; a new connection after each that failed.
  asio::awaitable<void> ask_on(int number) {
    const double gap_s = options_.rate > 0 ? options_.streams / options_.rate : 0;
    Clock::time_point due = begin_ + spread(gap_s * number / options_.streams);
    std::unique_ptr<boost::beast::tcp_stream> stream;
    for (;;) {
      if (options_.rate > 0) {
        asio::steady_timer timer(io_, due);
        boost::system::error_code ignored;
        co_await timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      } else {
        due = Clock::now();
      }
      if (due >= end_) co_return;
      if (!stream) {
        stream = std::make_unique<boost::beast::tcp_stream>(io_);
        boost::system::error_code error;
        const tcp::endpoint to(asio::ip::make_address("127.0.0.1"), options_.port);
        co_await stream->async_connect(to, asio::redirect_error(asio::use_awaitable, error));
      }
      const bool good = co_await ask(*stream, due);
      if (!good) stream.reset();
      if (options_.rate > 0) due += spread(gap_s);
    }
  }

  asio::awaitable<bool> ask(boost::beast::tcp_stream& stream, Clock::time_point due) {
    boost::system::error_code error;
    stream.expires_after(std::chrono::seconds(30));
    co_await http::async_write(stream, request_, asio::redirect_error(asio::use_awaitable, error));
    if (error) co_return fail(due);
    boost::beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    std::int64_t events = 0;
    std::size_t seen = 0;
    double first_ms = 0;
    while (!parser.is_done()) {
      co_await http::async_read_some(stream, buffer, parser,
                                     asio::redirect_error(asio::use_awaitable, error));
      if (error) co_return fail(due);
      const std::string_view body = parser.get().body();
      // An event may have come in two parts: look again from the last line's begin.
      const auto line = body.rfind('\n');
      if (line == std::string_view::npos || line + 1 <= seen) continue;
      events += count_events(body.substr(seen, line + 1 - seen));
      seen = line + 1;
      if (first_ms == 0 && events > 0) first_ms = ms_since(due);
    }
    if (parser.get().result() != http::status::ok || events < options_.tokens) {
      co_return fail(due);
    }
    if (due >= measured_from_ && Clock::now() <= end_) {
      ++result_.requests;
      result_.tokens += options_.tokens;
      result_.first_ms.push_back(first_ms);
      result_.all_ms.push_back(ms_since(due));
    }
    co_return parser.get().keep_alive();
  }

  bool fail(Clock::time_point due) {
    if (due >= measured_from_) ++result_.failed;
    return false;
  }

  static Clock::duration spread(double seconds) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(seconds * 1e9));
  }

  const LoadOptions options_;
  http::request<http::string_body> request_;
  asio::io_context io_{1};
  Clock::time_point begin_, measured_from_, end_;
  LoadResult result_;
};

}  // namespace

LoadResult run_load(const LoadOptions& options) {
  return Loader(options).run();
}

}  // namespace sluice
