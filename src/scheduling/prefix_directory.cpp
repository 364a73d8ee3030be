#include "scheduling/prefix_directory.h"

#include <algorithm>

#include "scheduling/load_table.h"

namespace sluice {

std::vector<std::uint64_t> prefix_hashes(std::span<const Token> prompt) {
  const std::size_t usable = prompt.empty() ? 0 : prompt.size() - 1;
  const std::size_t strides =
      std::min(usable / PrefixDirectory::kStride, PrefixDirectory::kMaxStrides);
  std::vector<std::uint64_t> hashes;
  hashes.reserve(strides);
  std::uint64_t hash = 0x9e3779b97f4a7c15ULL;
  for (std::size_t s = 0; s < strides; ++s) {
    for (const Token token :
         prompt.subspan(s * PrefixDirectory::kStride, PrefixDirectory::kStride)) {
      hash = (hash ^ static_cast<std::uint32_t>(token)) * 0xff51afd7ed558ccdULL;
      hash ^= hash >> 32;
    }
    hashes.push_back(hash);
  }
  return hashes;
}

void PrefixDirectory::insert(std::span<const std::uint64_t> hashes, InstanceId instance,
                             Incarnation incarnation) {
  // From the longest to the shortest, so that the shortest prefix, the one most
  // often shared, is the last to be forgotten.
  for (auto hash = hashes.rbegin(); hash != hashes.rend(); ++hash) {
    const auto [it, added] = entries_.try_emplace(*hash);
    if (added) {
      order_.push_front({*hash, {}});
    } else {
      order_.splice(order_.begin(), order_, it->second);
    }
    it->second = order_.begin();
    std::vector<Holder>& holders = it->second->holders;
    std::erase_if(holders, [&](const Holder& h) { return h.instance == instance; });
    holders.insert(holders.begin(), {instance, incarnation});
    if (holders.size() > kHolders) holders.pop_back();
    if (entries_.size() > capacity_) {
      entries_.erase(order_.back().hash);
      order_.pop_back();
    }
  }
}

std::vector<CachedPrefix> PrefixDirectory::find(std::span<const std::uint64_t> hashes,
                                                const LoadTable& table) const {
  std::vector<CachedPrefix> found;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto it = entries_.find(hashes[i]);
    if (it == entries_.end()) break;
    const auto tokens = static_cast<std::int32_t>((i + 1) * kStride);
    for (const Holder& holder : it->second->holders) {
      const LoadRow* row = table.find(holder.instance);
      if (row == nullptr || row->incarnation != holder.incarnation) continue;
      const auto known = std::find_if(found.begin(), found.end(), [&](const CachedPrefix& c) {
        return c.instance == holder.instance;
      });
      if (known == found.end()) {
        found.push_back({holder.instance, tokens});
      } else {
        known->tokens = tokens;
      }
    }
  }
  std::sort(found.begin(), found.end(),
            [](const CachedPrefix& a, const CachedPrefix& b) { return a.instance < b.instance; });
  return found;
}

}  // namespace sluice
