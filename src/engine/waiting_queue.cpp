#include "engine/waiting_queue.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/check.h"

namespace sluice {
namespace {

// Rules 1, 2 and 4; ids follow the order of arrival.
auto key(const Sequence& s) {
  return std::tuple(-std::int64_t{s.request->priority}, !s.admitted_at.has_value(), s.id.value);
}

}  // namespace

void WaitingQueue::add(std::unique_ptr<Sequence> sequence) {
  const auto place =
      std::ranges::upper_bound(items_, key(*sequence), {}, [](const auto& s) { return key(*s); });
  items_.insert(place, std::move(sequence));
}

std::unique_ptr<Sequence> WaitingQueue::take(const Sequence& sequence) {
  const auto it = std::ranges::find_if(items_, [&](const auto& s) { return s.get() == &sequence; });
  CHECK(it != items_.end());
  std::unique_ptr<Sequence> taken = std::move(*it);
  items_.erase(it);
  return taken;
}

std::vector<Sequence*> WaitingQueue::order(const Tenants& tenants) const {
  std::vector<Sequence*> order;
  order.reserve(items_.size());
  for (const auto& s : items_) order.push_back(s.get());
  if (tenants.present() <= 1) return order;
  std::ranges::stable_sort(order, {}, [&tenants](const Sequence* s) {
    const bool fresh = !s->admitted_at.has_value();
    return std::tuple(-std::int64_t{s->request->priority}, fresh,
                      fresh ? tenants.served(s->tenant) : 0.0);
  });
  return order;
}

Sequence* WaitingQueue::find(RequestId request) const {
  const auto it =
      std::ranges::find_if(items_, [&](const auto& s) { return s->request->id == request; });
  return it == items_.end() ? nullptr : it->get();
}

}  // namespace sluice
