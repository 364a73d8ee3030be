#include "gateway/mailbox.h"

#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>

namespace sluice {

namespace asio = boost::asio;

Mailbox::Mailbox(asio::any_io_executor executor, std::size_t limit)
    : limit_(limit), signal_(std::move(executor)) {}

void Mailbox::put(TokenEvent&& event) {
  if (overflowed_) return;
  if (events_.size() >= limit_) {
    overflowed_ = true;
    if (auto call = std::exchange(on_overflow_, nullptr)) call();
    return;
  }
  events_.push_back(std::move(event));
  wake();
}

void Mailbox::close() {
  closed_ = true;
  wake();
}

void Mailbox::wake() {
  if (!waiting_) return;
  waiting_ = false;
  boost::system::error_code ignored;
  signal_.cancel(ignored);
}

Task<void> Mailbox::take(std::vector<TokenEvent>& out) {
  out.clear();
  while (events_.empty() && !closed_) {
    waiting_ = true;
    signal_.expires_at(asio::steady_timer::time_point::max());
    boost::system::error_code ignored;
    co_await signal_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
  }
  std::swap(out, events_);
}

}  // namespace sluice
