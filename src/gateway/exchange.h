// One HTTP request with the means to answer it: what a handler gets.
//
// Lives on its connection's I/O thread; handlers are coroutines there. Either
// respond() or begin_stream() ... end_stream(), once.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "gateway/http_message.h"
#include "gateway/task.h"

namespace sluice {

class Exchange {
 public:
  virtual ~Exchange() = default;

  [[nodiscard]] virtual const HttpRequest& request() const = 0;
  [[nodiscard]] virtual HttpRequest& request() = 0;
  [[nodiscard]] virtual std::size_t thread_index() const = 0;
  [[nodiscard]] virtual boost::asio::any_io_executor executor() = 0;
  // A header of the answer, whichever way it is given.
  virtual void add_header(std::string name, std::string value) = 0;
  // After this answer the connection closes.
  virtual void close_after() = 0;

  // All return false when the client is gone.
  // Arguments are references that are used at once, and callers pass no
  // temporaries: g++ 12 may destroy those of a co_await expression twice.
  virtual Task<bool> respond(const HttpResponse& response) = 0;
  [[nodiscard]] virtual bool begin_stream(std::string_view content_type) = 0;
  virtual Task<bool> write(std::string_view bytes) = 0;
  virtual Task<bool> end_stream() = 0;

  // Watches for the client's end from now on; `on_gone` is called once, on this
  // thread, when it comes before the answer is complete.
  virtual void watch(std::function<void()> on_gone) = 0;
  [[nodiscard]] virtual bool gone() const = 0;
  // Closes the connection now, whatever is on its way.
  virtual void abort() = 0;
};

}  // namespace sluice
