#include "memory/prefix_index.h"

#include <algorithm>
#include <iterator>

#include "base/check.h"

namespace sluice {
namespace {

std::uint64_t mix(std::uint64_t a, std::uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

std::size_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  const std::size_t limit = std::min(a.size(), b.size());
  const auto end = a.begin() + static_cast<std::ptrdiff_t>(limit);
  return static_cast<std::size_t>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

}  // namespace

std::uint64_t prefix_hash(std::uint64_t parent_hash, std::span<const Token> block) {
  std::uint64_t hash = mix(parent_hash ^ 0x9e3779b97f4a7c15ULL, 0xd6e8feb86659fd93ULL);
  for (std::size_t i = 0; i < block.size(); i += 2) {
    const std::uint64_t low = static_cast<std::uint32_t>(block[i]);
    const std::uint64_t high =
        i + 1 < block.size() ? static_cast<std::uint32_t>(block[i + 1]) : 0xffffffffULL;
    hash = mix(hash ^ (low | (high << 32)) ^ 0xa0761d6478bd642fULL, 0xe7037ed1a0b428dbULL);
  }
  return hash;
}

bool PrefixIndex::ByTokens::operator()(std::int32_t a, std::int32_t b) const {
  return (*this)(index->probe_of(a), b);
}
bool PrefixIndex::ByTokens::operator()(std::int32_t a, const Probe& b) const {
  const Probe left = index->probe_of(a);
  if (left.parent != b.parent) return left.parent < b.parent;
  return std::ranges::lexicographical_compare(left.tokens, b.tokens);
}
bool PrefixIndex::ByTokens::operator()(const Probe& a, std::int32_t b) const {
  const Probe right = index->probe_of(b);
  if (a.parent != right.parent) return a.parent < right.parent;
  return std::ranges::lexicographical_compare(a.tokens, right.tokens);
}

PrefixIndex::PrefixIndex(std::int32_t block_tokens, std::uint64_t hash_mask)
    : block_tokens_(static_cast<std::size_t>(block_tokens)),
      hash_mask_(hash_mask),
      order_(ByTokens{this}) {
  CHECK_GT(block_tokens, 0);
}

std::span<const Token> PrefixIndex::tokens_of(std::int32_t node) const {
  return std::span(tokens_).subspan(static_cast<std::size_t>(node) * block_tokens_, block_tokens_);
}

PrefixIndex::Probe PrefixIndex::probe_of(std::int32_t node) const {
  return {at(PrefixNode(node)).parent, tokens_of(node)};
}

std::uint64_t PrefixIndex::hash(PrefixNode node) const {
  return node == kPrefixRoot ? 0 : at(node).hash;
}

bool PrefixIndex::exists(PrefixNode node) const {
  return node.value >= 0 && static_cast<std::size_t>(node.value) < nodes_.size() && at(node).exists;
}

std::optional<PrefixNode> PrefixIndex::child(PrefixNode parent,
                                             std::span<const Token> tokens) const {
  if (parent != kPrefixRoot) {
    const std::int32_t newest = at(parent).newest_child;
    if (newest >= 0 && std::ranges::equal(tokens_of(newest), tokens)) return PrefixNode(newest);
    if (at(parent).children <= (newest >= 0 ? 1 : 0)) return std::nullopt;
  }
  const auto [begin, end] = by_hash_.equal_range(key(parent, tokens));
  for (auto it = begin; it != end; ++it) {  // at most one can be equal, so order does not matter
    if (at(PrefixNode(it->second)).parent != parent) continue;
    if (std::ranges::equal(tokens_of(it->second), tokens)) return PrefixNode(it->second);
  }
  return std::nullopt;
}

PrefixMatch PrefixIndex::match(std::span<const Token> tokens) const {
  PrefixMatch match;
  PrefixNode node = kPrefixRoot;
  while (tokens.size() >= block_tokens_) {
    const std::span<const Token> block = tokens.first(block_tokens_);
    const auto next = child(node, block);
    if (!next) break;
    node = *next;
    match.path.push_back(node);
    tokens = tokens.subspan(block_tokens_);
  }
  if (!tokens.empty()) match_partial(tokens.first(std::min(tokens.size(), block_tokens_)), match);
  return match;
}

void PrefixIndex::match_partial(std::span<const Token> rest, PrefixMatch& match) const {
  const PrefixNode parent = match.path.empty() ? kPrefixRoot : match.path.back();
  const auto consider = [&](std::int32_t node) {
    if (at(PrefixNode(node)).parent != parent) return;
    const auto shared = static_cast<std::int32_t>(common_prefix(tokens_of(node), rest));
    if (shared <= match.partial_tokens) return;
    match.partial = PrefixNode(node);
    match.partial_tokens = shared;
  };
  const auto after = order_.lower_bound(Probe{parent, rest});
  if (after != order_.end()) consider(*after);
  if (after != order_.begin()) consider(*std::prev(after));
}

PrefixIndex::Inserted PrefixIndex::insert(PrefixNode parent, std::span<const Token> tokens,
                                          BlockId block) {
  CHECK_EQ(tokens.size(), block_tokens_);
  if (const auto equal = child(parent, tokens)) return {*equal, false};

  if (recycled_.empty()) {
    recycled_.push_back(static_cast<std::int32_t>(nodes_.size()));
    nodes_.emplace_back();
    tokens_.resize(tokens_.size() + block_tokens_);
  }
  const std::int32_t id = recycled_.back();
  recycled_.pop_back();
  Node& node = nodes_[static_cast<std::size_t>(id)];
  node = Node{};
  node.block = block;
  node.parent = parent;
  node.hash = key(parent, tokens);
  node.exists = true;
  std::ranges::copy(tokens, tokens_.begin() + static_cast<std::ptrdiff_t>(
                                                  static_cast<std::size_t>(id) * block_tokens_));
  if (parent != kPrefixRoot) {
    CHECK(!at(parent).unused);
    ++at(parent).children;
    at(parent).newest_child = id;
  }
  by_hash_.emplace(node.hash, id);
  order_.insert(id);
  return {PrefixNode(id), true};
}

void PrefixIndex::mark_unused(PrefixNode id) {
  Node& node = at(id);
  CHECK(node.exists && !node.unused);
  node.unused = true;
  node.older = newest_;
  node.newer = -1;
  (newest_ >= 0 ? at(PrefixNode(newest_)).newer : oldest_) = id.value;
  newest_ = id.value;
  ++num_unused_;
}

void PrefixIndex::unlink(Node& node) {
  CHECK(node.unused);
  (node.older >= 0 ? at(PrefixNode(node.older)).newer : oldest_) = node.newer;
  (node.newer >= 0 ? at(PrefixNode(node.newer)).older : newest_) = node.older;
  node.older = node.newer = -1;
  node.unused = false;
  --num_unused_;
}

void PrefixIndex::mark_used(PrefixNode id) {
  CHECK(at(id).exists);
  unlink(at(id));
}

void PrefixIndex::remove(std::int32_t id) {
  Node& node = at(PrefixNode(id));
  const auto [begin, end] = by_hash_.equal_range(node.hash);
  by_hash_.erase(std::find_if(begin, end, [id](const auto& entry) { return entry.second == id; }));
  order_.erase(id);
  if (node.parent != kPrefixRoot) {
    Node& parent = at(node.parent);
    --parent.children;
    if (parent.newest_child == id) parent.newest_child = -1;
  }
  node.exists = false;
  recycled_.push_back(id);
}

std::optional<BlockId> PrefixIndex::evict() {
  if (oldest_ < 0) return std::nullopt;
  const std::int32_t id = oldest_;
  Node& node = at(PrefixNode(id));
  CHECK_EQ(node.children, 0);
  const BlockId block = node.block;
  unlink(node);
  remove(id);
  return block;
}

void PrefixIndex::check_invariants() const {
  std::vector<std::int32_t> children(nodes_.size(), 0);
  std::int32_t num_nodes = 0;
  std::int32_t num_unused = 0;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const Node& node = nodes_[i];
    if (!node.exists) continue;
    ++num_nodes;
    num_unused += node.unused ? 1 : 0;
    CHECK(order_.contains(static_cast<std::int32_t>(i)));
    CHECK(child(node.parent, tokens_of(static_cast<std::int32_t>(i))) ==
          PrefixNode(static_cast<std::int32_t>(i)));
    CHECK(node.newest_child < 0 ||
          at(PrefixNode(node.newest_child)).parent == PrefixNode(static_cast<std::int32_t>(i)));
    if (node.parent == kPrefixRoot) continue;
    CHECK(exists(node.parent));
    CHECK(node.unused || !at(node.parent).unused);
    ++children[static_cast<std::size_t>(node.parent.value)];
  }
  CHECK_EQ(num_nodes, this->num_nodes());
  CHECK_EQ(num_unused, num_unused_);
  CHECK_EQ(by_hash_.size(), order_.size());
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].exists) CHECK_EQ(nodes_[i].children, children[i]);
  }
  std::int32_t listed = 0;
  std::int32_t older = -1;
  for (std::int32_t i = oldest_; i >= 0; i = at(PrefixNode(i)).newer) {
    CHECK_EQ(at(PrefixNode(i)).older, older);
    CHECK(at(PrefixNode(i)).unused);
    older = i;
    ++listed;
  }
  CHECK_EQ(older, newest_);
  CHECK_EQ(listed, num_unused_);
}

}  // namespace sluice
