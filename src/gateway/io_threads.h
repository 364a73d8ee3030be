// The gateway's I/O threads, each with an io_context of its own. What belongs
// to a connection is touched by its thread only; others post to it.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <memory>
#include <thread>
#include <vector>

#include "base/time.h"

namespace sluice {

class IoThreads final {
 public:
  explicit IoThreads(std::size_t count);
  ~IoThreads();
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  void start();
  // Lets each thread run out of work, at most for `grace`, then joins it. Once only.
  void stop(Duration grace);

  [[nodiscard]] std::size_t size() const { return threads_.size(); }
  [[nodiscard]] boost::asio::io_context& context(std::size_t index) {
    return threads_[index]->context;
  }

 private:
  struct IoThread {
    boost::asio::io_context context{1};
    boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
        context.get_executor()};
    std::jthread thread;
  };
  std::vector<std::unique_ptr<IoThread>> threads_;
};

}  // namespace sluice
