#include "scheduling/prefix_directory.h"

#include <algorithm>
#include <array>

#include "scheduling/load_table.h"

namespace sluice {

namespace {

constexpr std::size_t kStride = 32;

constexpr std::array<std::size_t, PrefixDirectory::kMarks> make_marks() {
  std::array<std::size_t, PrefixDirectory::kMarks> marks{};
  std::size_t at = 0;
  for (std::size_t& mark : marks) {
    at += std::max(kStride, at / 16 / kStride * kStride);
    mark = at;
  }
  return marks;
}
constexpr auto kMarksAt = make_marks();
static_assert(kMarksAt.back() > 1'000'000);

}  // namespace

std::size_t PrefixDirectory::mark(std::size_t i) {
  return kMarksAt[i];
}

std::vector<std::uint64_t> prefix_hashes(std::span<const Token> prompt) {
  std::vector<std::uint64_t> hashes;
  std::uint64_t hash = 0x9e3779b97f4a7c15ULL;
  std::size_t at = 0;
  for (const std::size_t mark : kMarksAt) {
    if (mark >= prompt.size()) break;
    for (; at < mark; ++at) {
      hash = (hash ^ static_cast<std::uint32_t>(prompt[at])) * 0xff51afd7ed558ccdULL;
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
    const auto tokens = static_cast<std::int32_t>(mark(i));
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
