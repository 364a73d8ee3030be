// Writes one message of a stream at a time; what is said meanwhile gathers in the next.
//
// A stream of the callback API takes one write at a time. Here every sayer adds to
// the message that waits and goes on at once, so that a slow peer blocks nobody, and
// the slower it is the fewer and larger its messages are. What waits is bounded: a
// peer that is behind by more is not served any longer. Any thread. Internal to net/.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>

namespace sluice {

template <class Message>
class GatheredWrites final {
 public:
  static constexpr std::size_t kMaxWaitingBytes = std::size_t{64} << 20;

  // `start` begins the write of a message that stays until written(); it is called
  // under the lock and must not call back.
  explicit GatheredWrites(std::function<void(const Message&)> start) : start_(std::move(start)) {}

  // `bytes` is about what `fill` adds. False: closed, or too much waits already.
  template <class Fill>
  bool add(std::size_t bytes, const Fill& fill) {
    const std::lock_guard lock(mutex_);
    if (closed_ || waiting_bytes_ + bytes > kMaxWaitingBytes) return false;
    fill(waiting_);
    waiting_bytes_ += bytes;
    something_waits_ = true;
    start_next();
    return true;
  }

  // The stream has taken the message.
  void written() {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    start_next();
  }

  // Nothing is started any more once this returns.
  void close() {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }

 private:
  void start_next() {
    if (writing_ || closed_ || !something_waits_) return;
    current_.Clear();
    std::swap(current_, waiting_);
    waiting_bytes_ = 0;
    something_waits_ = false;
    writing_ = true;
    start_(current_);
  }

  const std::function<void(const Message&)> start_;
  std::mutex mutex_;
  Message current_;  // belongs to the stream while writing_
  Message waiting_;
  std::size_t waiting_bytes_ = 0;
  bool something_waits_ = false;
  bool writing_ = false;
  bool closed_ = false;
};

}  // namespace sluice
