#include "memory/block_pool.h"

#include <bit>

#include "base/check.h"

namespace sluice {

BlockPool::BlockPool(std::int32_t num_blocks, std::int32_t first) : first_(first) {
  CHECK_GE(num_blocks, 0);
  CHECK_GE(first, 0);
  const auto count = static_cast<std::size_t>(num_blocks);
  refs_.assign(count, 0);
  written_.assign(count, 0);
  free_words_.assign((count + 63) / 64, ~std::uint64_t{0});
  if (count % 64 != 0) free_words_.back() = (std::uint64_t{1} << (count % 64)) - 1;
  num_free_ = num_blocks;
}

bool BlockPool::is_free(BlockId block) const {
  const std::size_t i = index(block);
  return ((free_words_[i / 64] >> (i % 64)) & 1) != 0;
}

void BlockPool::take(BlockId block) {
  const std::size_t i = index(block);
  free_words_[i / 64] &= ~(std::uint64_t{1} << (i % 64));
  CHECK_EQ(refs_[i], 0);
  refs_[i] = 1;
  --num_free_;
  ++num_used_;
}

void BlockPool::allocate(std::int32_t count, std::vector<BlockId>& table) {
  CHECK_GE(count, 0);
  CHECK_LE(count, num_free_);
  table.reserve(table.size() + static_cast<std::size_t>(count));
  for (std::int32_t i = 0; i < count; ++i) {
    if (!table.empty()) {
      const BlockId next(table.back().value + 1);
      if (next.value - first_ < num_blocks() && is_free(next)) {
        take(next);
        table.push_back(next);
        continue;
      }
    }
    while (free_words_[first_word_] == 0) ++first_word_;
    const auto bit = static_cast<std::size_t>(std::countr_zero(free_words_[first_word_]));
    const BlockId lowest(first_ + static_cast<std::int32_t>(first_word_ * 64 + bit));
    take(lowest);
    table.push_back(lowest);
  }
}

void BlockPool::ref(BlockId block) {
  CHECK(!is_free(block));
  const std::size_t i = index(block);
  if (refs_[i]++ == 0) {
    ++num_used_;
    if (written_[i] != 0) ++num_written_;
  }
}

bool BlockPool::unref(BlockId block) {
  const std::size_t i = index(block);
  CHECK_GT(refs_[i], 0);
  if (--refs_[i] > 0) return false;
  --num_used_;
  if (written_[i] != 0) --num_written_;
  return true;
}

void BlockPool::free(BlockId block) {
  const std::size_t i = index(block);
  CHECK_EQ(refs_[i], 0);
  CHECK(!is_free(block));
  written_[i] = 0;
  free_words_[i / 64] |= std::uint64_t{1} << (i % 64);
  if (i / 64 < first_word_) first_word_ = i / 64;
  ++num_free_;
}

void BlockPool::mark_written(BlockId block) {
  const std::size_t i = index(block);
  CHECK_GT(refs_[i], 0);
  if (written_[i] != 0) return;
  written_[i] = 1;
  ++num_written_;
}

void BlockPool::check_invariants() const {
  std::int32_t num_free = 0;
  std::int32_t num_used = 0;
  std::int32_t num_written = 0;
  for (std::int32_t b = 0; b < num_blocks(); ++b) {
    const std::size_t i = static_cast<std::size_t>(b);
    const bool free = is_free(BlockId(first_ + b));
    CHECK_GE(refs_[i], 0);
    if (free) {
      CHECK_EQ(refs_[i], 0);
      CHECK_EQ(written_[i], 0);
      CHECK_LE(first_word_, i / 64);
    }
    num_free += free ? 1 : 0;
    num_used += refs_[i] > 0 ? 1 : 0;
    num_written += refs_[i] > 0 && written_[i] != 0 ? 1 : 0;
  }
  CHECK_EQ(num_free, num_free_);
  CHECK_EQ(num_used, num_used_);
  CHECK_EQ(num_written, num_written_);
}

}  // namespace sluice
