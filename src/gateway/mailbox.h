// Where one HTTP request's coroutine waits for token events. All on the
// connection's I/O thread.
//
// Bounded: a client that does not read lets events pile up; over the limit the
// mailbox overflows, says so once, and takes no more.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <functional>
#include <vector>

#include "engine/request.h"
#include "gateway/task.h"

namespace sluice {

class Mailbox final {
 public:
  Mailbox(boost::asio::any_io_executor executor, std::size_t limit);
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  // Called from put(), at most once.
  void on_overflow(std::function<void()> call) { on_overflow_ = std::move(call); }
  void put(TokenEvent&& event);
  // Ends the waiting for good, with what is there.
  void close();

  // Replaces `out` by all events that are there; waits for the first one. Wakes
  // once for all that came in one hand-over. Empty when closed.
  [[nodiscard]] Task<void> take(std::vector<TokenEvent>& out);

 private:
  void wake();

  const std::size_t limit_;
  boost::asio::steady_timer signal_;
  std::vector<TokenEvent> events_;
  std::function<void()> on_overflow_;
  bool waiting_ = false;
  bool closed_ = false;
  bool overflowed_ = false;
};

}  // namespace sluice
