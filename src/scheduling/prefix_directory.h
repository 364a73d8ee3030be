// Which instance was lately sent which prompt prefix: a bounded guess at what
// its prefix cache holds, good enough to prefer it.
//
// Belongs to its scheduler's loop. A prefix is known by chained hashes at every
// kStride tokens, so the longest common prefix of two prompts is the longest run
// of equal hashes. The least recently used hashes are forgotten first.
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

// Chained hashes of the leading strides of a prompt; the last token is left out,
// since an engine always computes it.
[[nodiscard]] std::vector<std::uint64_t> prefix_hashes(std::span<const Token> prompt);

class PrefixDirectory final {
 public:
  static constexpr std::size_t kStride = 32;       // tokens
  static constexpr std::size_t kMaxStrides = 256;  // of one prompt
  static constexpr std::size_t kHolders = 4;       // instances remembered for a hash

  explicit PrefixDirectory(std::size_t capacity = 1U << 16U) : capacity_(capacity) {}

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
