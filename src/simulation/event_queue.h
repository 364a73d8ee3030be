// The order of all that happens in a simulated world: by time, and at one time
// in the order of scheduling, so that a run repeats exactly.
//
// Its hash takes in every event that was popped: two runs of one seed have equal
// hashes, or something in them depends on what it must not (an address, a clock).
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/time.h"

namespace sluice {

template <class Kind>
class EventQueue final {
 public:
  struct Event {
    TimePoint at{};
    std::uint64_t order = 0;
    Kind kind{};
    std::uint32_t subject = 0;
  };

  void push(TimePoint at, Kind kind, std::uint32_t subject) {
    heap_.push_back({at, next_order_++, kind, subject});
    std::push_heap(heap_.begin(), heap_.end(), later);
  }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  [[nodiscard]] const Event& next() const { return heap_.front(); }
  Event pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    const Event event = heap_.back();
    heap_.pop_back();
    note(static_cast<std::uint64_t>(event.at.time_since_epoch().count()));
    note(static_cast<std::uint64_t>(event.kind) << 32 | event.subject);
    ++count_;
    return event;
  }
  // Takes something more into the hash.
  void note(std::uint64_t value) {
    hash_ = (hash_ ^ value) * 0x9e3779b97f4a7c15ULL;
    hash_ ^= hash_ >> 32;
  }
  [[nodiscard]] std::uint64_t hash() const { return hash_; }
  [[nodiscard]] std::uint64_t count() const { return count_; }  // popped

 private:
  static bool later(const Event& a, const Event& b) {
    return a.at != b.at ? a.at > b.at : a.order > b.order;
  }

  std::vector<Event> heap_;
  std::uint64_t next_order_ = 0;
  std::uint64_t hash_ = 0xcbf29ce484222325ULL;
  std::uint64_t count_ = 0;
};

}  // namespace sluice
