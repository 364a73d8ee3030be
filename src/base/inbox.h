// A bounded queue into one loop: any thread pushes, the owner of the loop drains.
//
// Values are moved in and out. A full inbox is an answer, not a wait: push()
// returns false and leaves the value with the caller. The mutex here guards
// `items_` and `closed_`; together with the adapters in net/ and gateway/ these
// are all the mutexes of the program.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/time.h"

namespace sluice {

template <class T>
class Inbox final {
 public:
  explicit Inbox(std::size_t capacity) : capacity_(capacity) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // False when full or closed; `item` is then untouched.
  [[nodiscard]] bool push(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // For the few messages that must arrive whatever the load (cancel, stop):
  // not counted against the capacity. False only when closed.
  bool push_urgent(T&& item) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // Replaces `out` by all that waits, oldest first; never blocks.
  void drain(std::vector<T>& out) {
    out.clear();
    const std::lock_guard lock(mutex_);
    std::swap(out, items_);
  }

  // As drain(), but waits until something arrives, the inbox is closed, or the
  // time is over.
  void wait_and_drain(std::vector<T>& out, Duration timeout) {
    out.clear();
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, timeout, [this] { return closed_ || !items_.empty(); });
    std::swap(out, items_);
  }

  // After this, pushes fail; what waits can still be drained.
  void close() {
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
    }
    ready_.notify_all();
  }

 private:
  const std::size_t capacity_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;  // guarded by mutex_
  bool closed_ = false;   // guarded by mutex_
};

}  // namespace sluice
