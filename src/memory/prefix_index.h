// Finds KV that exists already: a radix tree over full blocks of tokens.
//
// Belongs to the engine's loop, through KvManager. A node stands for one block
// whose content is known: its own tokens after those of all its ancestors. The
// index names blocks, it does not own them: the caller says which nodes nobody
// uses, and only those can be evicted. The caller uses whole paths: an unused
// node has no used descendant. So in the list of unused nodes, which a path
// joins from its deep end, the oldest one is always a leaf and eviction is O(1).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/ids.h"

namespace sluice {

using PrefixNode = Id<struct PrefixNodeTag, std::int32_t>;
inline constexpr PrefixNode kPrefixRoot{-1};

struct PrefixMatch {
  std::vector<PrefixNode> path;       // full blocks, from the root
  std::optional<PrefixNode> partial;  // the child of path.back() that shares most of what follows,
  std::int32_t partial_tokens = 0;    //   and how much: in [1, block_tokens]
};

// Names a block by all tokens up to its end, equal on every instance.
[[nodiscard]] std::uint64_t prefix_hash(std::uint64_t parent_hash, std::span<const Token> block);

class PrefixIndex final {
 public:
  // `hash_mask` narrows hashes, for tests: equality never rests on them alone.
  explicit PrefixIndex(std::int32_t block_tokens, std::uint64_t hash_mask = ~std::uint64_t{0});
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // O(tokens + log nodes).
  [[nodiscard]] PrefixMatch match(std::span<const Token> tokens) const;

  struct Inserted {
    PrefixNode node;
    bool created = false;  // false: an equal one was there, `block` was not taken
  };
  // Adds one full block below `parent`, in use. O(log nodes).
  Inserted insert(PrefixNode parent, std::span<const Token> tokens, BlockId block);

  [[nodiscard]] BlockId block(PrefixNode node) const { return at(node).block; }
  [[nodiscard]] std::uint64_t hash(PrefixNode node) const;
  // An equal block takes the place of a node's block.
  void replace_block(PrefixNode node, BlockId block) { at(node).block = block; }

  // Nobody uses the node now: it becomes the newest unused one.
  void mark_unused(PrefixNode node);
  void mark_used(PrefixNode node);
  // Forgets the unused node that was used longest ago; its block.
  std::optional<BlockId> evict();

  [[nodiscard]] std::int32_t num_nodes() const { return static_cast<std::int32_t>(order_.size()); }
  [[nodiscard]] std::int32_t num_unused() const { return num_unused_; }
  [[nodiscard]] bool is_unused(PrefixNode node) const { return at(node).unused; }
  // Whether `block` is the one at `node`, a node that exists.
  [[nodiscard]] bool exists(PrefixNode node) const;

  // Links, counts and order agree; O(nodes log nodes).
  void check_invariants() const;

 private:
  struct Node {
    BlockId block;
    PrefixNode parent;
    std::uint64_t hash = 0;
    std::int32_t children = 0;
    std::int32_t newest_child = -1;  // tried first: most nodes have one child
    std::int32_t older = -1;         // neighbours in the list of unused nodes
    std::int32_t newer = -1;
    bool unused = false;
    bool exists = false;
  };
  struct Probe {
    PrefixNode parent;
    std::span<const Token> tokens;
  };
  // By parent, then by tokens: the child that shares most with a probe is its neighbour.
  struct ByTokens {
    using is_transparent = void;
    const PrefixIndex* index;
    bool operator()(std::int32_t a, std::int32_t b) const;
    bool operator()(std::int32_t a, const Probe& b) const;
    bool operator()(const Probe& a, std::int32_t b) const;
  };

  [[nodiscard]] Node& at(PrefixNode node) { return nodes_[static_cast<std::size_t>(node.value)]; }
  [[nodiscard]] const Node& at(PrefixNode node) const {
    return nodes_[static_cast<std::size_t>(node.value)];
  }
  [[nodiscard]] std::span<const Token> tokens_of(std::int32_t node) const;
  [[nodiscard]] Probe probe_of(std::int32_t node) const;
  [[nodiscard]] std::uint64_t key(PrefixNode parent, std::span<const Token> tokens) const {
    return prefix_hash(hash(parent), tokens) & hash_mask_;
  }
  [[nodiscard]] std::optional<PrefixNode> child(PrefixNode parent,
                                                std::span<const Token> tokens) const;
  void match_partial(std::span<const Token> rest, PrefixMatch& match) const;
  void unlink(Node& node);
  void remove(std::int32_t node);

  const std::size_t block_tokens_;
  const std::uint64_t hash_mask_;
  std::vector<Node> nodes_;
  std::vector<Token> tokens_;                                     // block_tokens_ a node
  std::vector<std::int32_t> recycled_;                            // nodes that do not exist now
  std::unordered_multimap<std::uint64_t, std::int32_t> by_hash_;  // looked up only
  std::set<std::int32_t, ByTokens> order_;
  std::int32_t oldest_ = -1;
  std::int32_t newest_ = -1;
  std::int32_t num_unused_ = 0;
};

}  // namespace sluice
