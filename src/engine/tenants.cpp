#include "engine/tenants.h"

#include <algorithm>

#include "base/check.h"

namespace sluice {

double Tenants::least_present() const {
  double least = -1;
  for (const Slot& slot : slots_) {
    if (slot.requests > 0 && (least < 0 || slot.served < least)) least = slot.served;
  }
  return least < 0 ? floor_ : least;
}

// A new name takes the place of the absent tenant that was served least: it has
// the least to lose by being forgotten.
std::size_t Tenants::slot_of(const std::string& name) {
  if (name.empty()) return 0;
  if (const auto found = by_name_.find(name); found != by_name_.end()) return found->second;
  std::size_t slot = slots_.size();
  if (slot < kMost) {
    slots_.emplace_back();
  } else {
    slot = 0;
    for (std::size_t i = 1; i < slots_.size(); ++i) {
      if (slots_[i].requests > 0) continue;
      if (slot == 0 || slots_[i].served < slots_[slot].served) slot = i;
    }
    if (slot == 0) return 0;
    by_name_.erase(slots_[slot].name);
    slots_[slot] = {};
  }
  slots_[slot].name = name;
  by_name_.emplace(name, slot);
  return slot;
}

std::size_t Tenants::enter(const std::string& name) {
  const std::size_t tenant = slot_of(name);
  Slot& slot = slots_[tenant];
  if (slot.requests++ == 0) {
    slot.requests = 0;  // its own count is not the least that it starts at
    floor_ = least_present();
    slot.requests = 1;
    slot.served = std::max(slot.served, floor_);
    ++present_;
  }
  return tenant;
}

void Tenants::leave(std::size_t tenant) {
  Slot& slot = slots_[tenant];
  CHECK_GT(slot.requests, 0);
  if (present_ == 1 && slot.requests == 1) floor_ = std::max(floor_, slot.served);
  if (--slot.requests == 0) --present_;
}

}  // namespace sluice
