#include "gateway/io_threads.h"

#include <pthread.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <string>

namespace sluice {

IoThreads::IoThreads(std::size_t count) {
  threads_.reserve(count);
  for (std::size_t i = 0; i < count; ++i) threads_.push_back(std::make_unique<IoThread>());
}

IoThreads::~IoThreads() {
  stop(Duration::zero());
}

void IoThreads::start() {
  for (std::size_t i = 0; i < threads_.size(); ++i) {
    threads_[i]->thread = std::jthread([&context = threads_[i]->context, i] {
      pthread_setname_np(pthread_self(), ("gateway-" + std::to_string(i)).c_str());
      for (;;) {
        try {
          context.run();
          return;
        } catch (const std::exception& e) {
          // A handler let one through: our bug, which must not stop the others.
          spdlog::error("gateway: exception on an I/O thread: {}", e.what());
        }
      }
    });
  }
}

void IoThreads::stop(Duration grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  for (auto& t : threads_) t->work.reset();
  for (auto& t : threads_) {
    while (!t->context.stopped() && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    t->context.stop();
    if (t->thread.joinable()) t->thread.join();
  }
}

}  // namespace sluice
