// The fixed set of KV blocks of one instance: which are free, which are used,
// and by how many tables.
//
// Belongs to the engine's loop, through KvManager. A block is in one of three
// states: free; used (at least one reference); kept (no reference, but its
// content is wanted: an unused prefix). Allocation takes the lowest free block
// first, so equal histories give equal tables and bulk grants lie in runs.
#pragma once

#include <cstdint>
#include <vector>

#include "base/ids.h"

namespace sluice {

class BlockPool final {
 public:
  // Blocks [first, first + num_blocks) of an arena that others may share.
  explicit BlockPool(std::int32_t num_blocks, std::int32_t first = 0);

  [[nodiscard]] std::int32_t num_blocks() const { return static_cast<std::int32_t>(refs_.size()); }
  [[nodiscard]] std::int32_t first() const { return first_; }
  [[nodiscard]] std::int32_t num_free() const { return num_free_; }
  [[nodiscard]] std::int32_t num_used() const { return num_used_; }
  [[nodiscard]] std::int32_t num_kept() const { return num_blocks() - num_free_ - num_used_; }
  // Used blocks that hold tokens.
  [[nodiscard]] std::int32_t num_written() const { return num_written_; }

  // Appends `count` blocks with one reference each to `table`, the neighbour of
  // its last block first if that is free. The caller has made sure that enough
  // are free.
  void allocate(std::int32_t count, std::vector<BlockId>& table);

  // Adds a reference to a used or kept block.
  void ref(BlockId block);
  // Takes one away; true: that was the last one, and the block is kept now.
  [[nodiscard]] bool unref(BlockId block);
  // A kept block becomes free.
  void free(BlockId block);
  // A used block holds tokens now; stays so until it is free.
  void mark_written(BlockId block);

  [[nodiscard]] std::int32_t refs(BlockId block) const { return refs_[index(block)]; }
  [[nodiscard]] bool is_free(BlockId block) const;
  [[nodiscard]] bool is_written(BlockId block) const { return written_[index(block)] != 0; }

  // Counters agree with the blocks; O(blocks).
  void check_invariants() const;

 private:
  [[nodiscard]] std::size_t index(BlockId block) const {
    return static_cast<std::size_t>(block.value - first_);
  }
  void take(BlockId block);

  std::int32_t first_ = 0;
  std::vector<std::int32_t> refs_;  // by index()
  std::vector<std::uint8_t> written_;
  std::vector<std::uint64_t> free_words_;  // bit b of word w: that of index 64 w + b is free
  std::size_t first_word_ = 0;             // no word before it has a free block
  std::int32_t num_free_ = 0;
  std::int32_t num_used_ = 0;
  std::int32_t num_written_ = 0;
};

}  // namespace sluice
