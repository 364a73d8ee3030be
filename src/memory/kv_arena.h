// The memory that KV blocks lie in, on the CPU: one piece of anonymous memory
// with huge pages where the system has them, touched before the first step so
// that no page fault is on a step's path.
//
// Owned by the composition root; outlives every user of its view. This file is
// the CPU's device memory, the one place of this folder that calls the system.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/kv_layout.h"
#include "base/result.h"

namespace sluice {

// The file that an arena is, for other processes of the host; none: descriptor -1.
struct ArenaFile {
  int descriptor = -1;
  std::size_t offset = 0;  // of block 0
  std::size_t bytes = 0;   // of all blocks
};

enum class ArenaKind : std::uint8_t {
  kPrivate,  // anonymous memory
  kShared,   // a memfd of fixed size, which other processes may map
};

class KvArena final {
 public:
  // Reserves the memory; nothing is touched yet. kInvalidArgument: not a layout;
  // kNeverFits: the system does not give that much.
  [[nodiscard]] static Result<KvArena> create(const KvLayout& layout, std::int32_t num_blocks,
                                              ArenaKind kind = ArenaKind::kPrivate);

  KvArena(KvArena&& other) noexcept;
  KvArena& operator=(KvArena&& other) noexcept;
  ~KvArena();

  // Touching is split into chunks that the caller may spread over its threads;
  // each chunk once. Fails when the system is out of memory.
  [[nodiscard]] std::size_t num_chunks() const;
  [[nodiscard]] Status touch_chunk(std::size_t chunk) const;
  // All chunks, one after the other.
  [[nodiscard]] Status touch() const;

  [[nodiscard]] KvView view() const;
  [[nodiscard]] std::size_t bytes() const { return bytes_; }
  [[nodiscard]] ArenaFile file() const;

 private:
  KvArena() = default;

  int descriptor_ = -1;
  std::byte* mapping_ = nullptr;
  std::size_t mapping_bytes_ = 0;
  std::byte* base_ = nullptr;  // the first huge page in the mapping
  std::size_t bytes_ = 0;
  KvLayout layout_;
  std::int32_t num_blocks_ = 0;
};

}  // namespace sluice
