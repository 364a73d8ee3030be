// The engine's account of paused sequences' KV in host memory: which host blocks
// are whose, and what a copy costs. Belongs to the engine's loop.
//
// Invariant: used blocks are exactly those of the tables that save() returned
// and that were not given back by restore() or drop().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "memory/block_pool.h"
#include "memory/host_kv.h"

namespace sluice {

class HostStore final {
 public:
  // `port` may be null: there is no room then. `block_copy` is what copying one
  // block takes, until copies have been measured.
  HostStore(HostKv* port, const Clock& clock, Duration block_copy);

  [[nodiscard]] bool has_room(std::int32_t blocks) const {
    return blocks > 0 && blocks <= pool_.num_free();
  }
  // Out now and back later.
  [[nodiscard]] Duration cost(std::int32_t blocks) const { return 2 * blocks * block_copy_; }

  // A block's way out and back; nullopt: there is no room.
  [[nodiscard]] std::optional<Duration> block_pause() const {
    return has_room(1) ? std::optional(cost(1)) : std::nullopt;
  }

  // Copies the blocks out; the caller has asked has_room().
  [[nodiscard]] std::vector<BlockId> save(std::span<const BlockId> device);
  // Copies table[first..] back into device[first..] and frees all of the table.
  void restore(std::vector<BlockId>& table, std::size_t first, std::span<const BlockId> device);
  // Frees the table: its sequence has ended, or found its KV elsewhere.
  void drop(std::vector<BlockId>& table);

  [[nodiscard]] std::int32_t total_blocks() const { return pool_.num_blocks(); }
  [[nodiscard]] std::int32_t used_blocks() const { return pool_.num_used(); }
  [[nodiscard]] Duration block_copy() const { return block_copy_; }

 private:
  void observe(Duration took, std::size_t blocks);

  HostKv* const port_;
  const Clock& clock_;
  BlockPool pool_;
  Duration block_copy_;
};

}  // namespace sluice
