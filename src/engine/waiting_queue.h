// Requests that were accepted and hold no device memory, in the order in which
// they will be admitted:
//
//   1. higher priority first;
//   2. of equal priority those that ran before (paused, or to be recomputed);
//   3. then those of the tenant that has been served least (tenants.h);
//   4. then the oldest.
//
// Belongs to the engine's loop.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "base/ids.h"
#include "engine/sequence.h"
#include "engine/tenants.h"

namespace sluice {

class WaitingQueue final {
 public:
  void add(std::unique_ptr<Sequence> sequence);
  // Takes it out; it is in the queue.
  [[nodiscard]] std::unique_ptr<Sequence> take(const Sequence& sequence);

  // In the order of admission, as counts are now. Valid until the queue changes.
  [[nodiscard]] std::vector<Sequence*> order(const Tenants& tenants) const;
  [[nodiscard]] Sequence* find(RequestId request) const;

  [[nodiscard]] const std::vector<std::unique_ptr<Sequence>>& items() const { return items_; }
  [[nodiscard]] bool empty() const { return items_.empty(); }
  [[nodiscard]] std::size_t size() const { return items_.size(); }
  void clear() { items_.clear(); }

 private:
  std::vector<std::unique_ptr<Sequence>> items_;  // by 1, 2, 4
};

}  // namespace sluice
