#include "memory/prefix_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/rng.h"

namespace sluice {
namespace {

constexpr std::int32_t kBlock = 4;

using Tokens = std::vector<Token>;

// Inserts all full blocks; blocks are numbered from `first`.
std::vector<PrefixNode> insert_all(PrefixIndex& index, const Tokens& tokens, std::int32_t first) {
  std::vector<PrefixNode> path;
  PrefixNode node = kPrefixRoot;
  for (std::size_t i = 0; i + kBlock <= tokens.size(); i += kBlock) {
    const auto block = std::span(tokens).subspan(i, kBlock);
    const auto inserted = index.insert(node, block, BlockId(first++));
    if (!inserted.created && index.is_unused(inserted.node)) index.mark_used(inserted.node);
    node = inserted.node;
    path.push_back(node);
  }
  return path;
}

void release(PrefixIndex& index, const std::vector<PrefixNode>& path) {
  for (std::size_t i = path.size(); i-- > 0;) index.mark_unused(path[i]);
}

TEST(PrefixIndex, MatchesFullBlocksAndPartOfTheNext) {
  PrefixIndex index(kBlock);
  insert_all(index, {1, 2, 3, 4, 5, 6, 7, 8}, 0);
  insert_all(index, {1, 2, 3, 4, 5, 6, 9, 9}, 10);
  struct Case {
    const char* name;
    Tokens tokens;
    std::size_t full;
    std::int32_t partial;
    std::int32_t from;  // block of the partial match
  };
  for (const Case& c : {
           Case{"nothing", {7}, 0, 0, -1},
           Case{"empty", {}, 0, 0, -1},
           Case{"part of the first", {1, 2, 8, 8}, 0, 2, 0},
           Case{"shorter than a block", {1, 2}, 0, 2, 0},
           Case{"one full", {1, 2, 3, 4}, 1, 0, -1},
           Case{"one and a half, either child", {1, 2, 3, 4, 5, 6}, 1, 2, 1},
           Case{"the closer child", {1, 2, 3, 4, 5, 6, 9, 1}, 1, 3, 11},
           Case{"the closer child, from above", {1, 2, 3, 4, 5, 6, 7, 9}, 1, 3, 1},
           Case{"all of it", {1, 2, 3, 4, 5, 6, 9, 9}, 2, 0, -1},
           Case{"longer than known", {1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4}, 2, 0, -1},
       }) {
    SCOPED_TRACE(c.name);
    const PrefixMatch match = index.match(c.tokens);
    EXPECT_EQ(match.path.size(), c.full);
    EXPECT_EQ(match.partial_tokens, c.partial);
    ASSERT_EQ(match.partial.has_value(), c.partial > 0);
    if (c.partial == 2 && c.full == 1) {
      EXPECT_TRUE(index.block(*match.partial) == BlockId(1) ||
                  index.block(*match.partial) == BlockId(11));
    } else if (match.partial) {
      EXPECT_EQ(index.block(*match.partial), BlockId(c.from));
    }
  }
}

TEST(PrefixIndex, AnEqualBlockIsNotTakenTwice) {
  PrefixIndex index(kBlock);
  const Tokens tokens{1, 2, 3, 4};
  const auto first = index.insert(kPrefixRoot, tokens, BlockId(0));
  const auto second = index.insert(kPrefixRoot, tokens, BlockId(1));
  EXPECT_TRUE(first.created);
  EXPECT_FALSE(second.created);
  EXPECT_EQ(first.node, second.node);
  EXPECT_EQ(index.block(second.node), BlockId(0));
  index.replace_block(second.node, BlockId(1));
  EXPECT_EQ(index.block(index.match(tokens).path.front()), BlockId(1));
  EXPECT_EQ(index.num_nodes(), 1);
}

TEST(PrefixIndex, EvictsTheLeastRecentlyUsedDeepEndFirst) {
  PrefixIndex index(kBlock);
  const auto a = insert_all(index, {1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}, 0);
  const auto b = insert_all(index, {1, 1, 1, 1, 5, 5, 5, 5}, 10);  // shares node 0
  EXPECT_EQ(index.evict(), std::nullopt);                          // all are in use
  index.mark_unused(a[2]);
  index.mark_unused(a[1]);
  EXPECT_EQ(index.num_unused(), 2);
  EXPECT_EQ(index.evict(), BlockId(2));
  release(index, {b[0], b[1]});
  EXPECT_EQ(index.evict(), BlockId(1));
  EXPECT_EQ(index.evict(), BlockId(11));
  EXPECT_EQ(index.evict(), BlockId(0));
  EXPECT_EQ(index.evict(), std::nullopt);
  EXPECT_EQ(index.num_nodes(), 0);
  index.check_invariants();
}

TEST(PrefixIndex, UseMovesAPathToTheYoungEnd) {
  PrefixIndex index(kBlock);
  const auto a = insert_all(index, {1, 1, 1, 1}, 0);
  const auto b = insert_all(index, {2, 2, 2, 2}, 1);
  release(index, a);
  release(index, b);
  index.mark_used(a[0]);
  release(index, a);
  EXPECT_EQ(index.evict(), BlockId(1));
  EXPECT_EQ(index.evict(), BlockId(0));
}

TEST(PrefixIndex, HashesNameAllTokensSoFar) {
  const Tokens a{1, 2, 3, 4};
  const Tokens b{1, 2, 3, 5};
  EXPECT_EQ(prefix_hash(0, a), prefix_hash(0, a));
  EXPECT_NE(prefix_hash(0, a), prefix_hash(0, b));
  EXPECT_NE(prefix_hash(0, a), prefix_hash(1, a));
  EXPECT_NE(prefix_hash(0, Tokens{1, 2, 3}), prefix_hash(0, Tokens{1, 2, 3, 0}));
}

// Longest match by comparing with every sequence that is known: what the index
// must find, also when all hashes are equal.
class PrefixIndexWorld : public testing::TestWithParam<std::uint64_t> {};

TEST_P(PrefixIndexWorld, AgreesWithComparingEverything) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    PrefixIndex index(kBlock, GetParam());
    std::map<Tokens, std::vector<PrefixNode>> unused;  // known, by their tokens
    std::int32_t next_block = 0;
    const auto random_tokens = [&] {
      Tokens tokens(rng.below(17));
      for (Token& token : tokens) token = static_cast<Token>(rng.below(3));
      return tokens;
    };
    for (int op = 0; op < 150; ++op) {
      const Tokens tokens = random_tokens();
      if (rng.below(8) == 0 && index.num_unused() > 0) {
        ASSERT_TRUE(index.evict().has_value());
        // Rebuild the reference by asking what is left of each.
        std::map<Tokens, std::vector<PrefixNode>> left;
        for (const auto& [known, path] : unused) {
          std::size_t alive = 0;
          while (alive < path.size() && index.exists(path[alive])) ++alive;
          const auto length = static_cast<std::ptrdiff_t>(alive * kBlock);
          left[Tokens(known.begin(), known.begin() + length)] = {
              path.begin(), path.begin() + static_cast<std::ptrdiff_t>(alive)};
        }
        unused = std::move(left);
      } else {
        const auto path = insert_all(index, tokens, next_block);
        next_block += 4;
        release(index, path);
        unused[Tokens(tokens.begin(),
                      tokens.begin() + static_cast<std::ptrdiff_t>(path.size() * kBlock))] = path;
      }
      index.check_invariants();

      const Tokens probe = random_tokens();
      std::size_t best = 0;
      for (const auto& [known, path] : unused) {
        const auto end = std::mismatch(probe.begin(), probe.end(), known.begin(), known.end());
        best = std::max(best, static_cast<std::size_t>(end.first - probe.begin()));
      }
      const PrefixMatch match = index.match(probe);
      EXPECT_EQ(match.path.size() * kBlock + static_cast<std::size_t>(match.partial_tokens), best);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Hashes, PrefixIndexWorld,
                         testing::Values(~std::uint64_t{0}, std::uint64_t{0}, std::uint64_t{3}));

}  // namespace
}  // namespace sluice
