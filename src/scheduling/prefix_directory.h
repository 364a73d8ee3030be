// Which instance was lately sent which prompt prefix: a bounded guess at what
// its prefix cache holds, good enough to prefer it.
//
// Belongs to its scheduler's loop. A prefix is known by chained hashes at marks
// that lie the further apart the further they are from the prompt's begin, so the
// longest common prefix of two prompts is, to within a sixteenth, the longest run
// of equal hashes, and a prompt of 100,000 tokens has about as many marks as one
// of 5,000 has strides of 32. Conversations come back after minutes: the bound is
// some thousand prompts. The least recently used hashes are forgotten first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "scheduling/placement.h"

namespace sluice {

// Chained hashes at the marks of a prompt; the last token is left out, since an
// engine always computes it.
[[nodiscard]] std::vector<std::uint64_t> prefix_hashes(std::span<const Token> prompt);

class PrefixDirectory final {
 public:
  static constexpr std::size_t kMarks = 160;  // of one prompt; the last is beyond a million tokens
  static constexpr std::size_t kHolders = 4;  // instances remembered for a hash

  explicit PrefixDirectory(std::size_t capacity = 1U << 18U) : capacity_(capacity) {}

  // Tokens before mark i: 32, 64, ..., 512, then a sixteenth further each.
  [[nodiscard]] static std::size_t mark(std::size_t i);

  void insert(std::span<const std::uint64_t> hashes, InstanceId instance, Incarnation incarnation);
  // Instances that hold something of the prompt, with the tokens. An instance
  // whose incarnation is another one by now holds nothing.
  [[nodiscard]] std::vector<CachedPrefix> find(std::span<const std::uint64_t> hashes,
                                               const LoadTable& table) const;
  [[nodiscard]] std::size_t size() const { return entries_.size(); }

 private:
  struct Holder {
    InstanceId instance;
    Incarnation incarnation;
  };
  struct Entry {
    std::uint64_t hash = 0;
    std::vector<Holder> holders;  // newest first
  };
  using Order = std::list<Entry>;  // most recently used first

  const std::size_t capacity_;
  Order order_;
  std::unordered_map<std::uint64_t, Order::iterator> entries_;
};

}  // namespace sluice
