// KV in host memory: where a sequence waits that had to give its blocks back.
//
// A port. On a CPU it is a second arena beside the first; on a device, pinned
// memory and its copy engine. Belongs to the engine's loop; a copy is done when
// the call returns. Blocks are numbered from 0 in either memory.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "base/ids.h"
#include "base/kv_layout.h"
#include "memory/kv_arena.h"

namespace sluice {

class HostKv {
 public:
  virtual ~HostKv() = default;

  [[nodiscard]] virtual std::int32_t num_blocks() const = 0;
  // Spans of equal length: device[i] to host[i], and back.
  virtual void save(std::span<const BlockId> device, std::span<const BlockId> host) = 0;
  virtual void restore(std::span<const BlockId> host, std::span<const BlockId> device) = 0;
};

// A second arena, of the device arena's layout. `device` outlives the result.
[[nodiscard]] std::unique_ptr<HostKv> make_arena_host_kv(const KvView& device, KvArena host);

}  // namespace sluice
