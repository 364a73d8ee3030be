// An engine's memory and its runner, as the options size them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "memory/kv_arena.h"
#include "model/device.h"
#include "model/model.h"
#include "net/local_cluster.h"
#include "sizing.h"

namespace sluice {

// What --device means here. Throws.
[[nodiscard]] Device device_of(const std::string& wanted);

// The machine as one device of it sees it: with that device's memory. Asked for after
// the model was loaded.
[[nodiscard]] Machine machine_of(const Device& device);

// Where an instance's KV lies: host memory on the CPU, else the device's own.
class KvMemory {
 public:
  // So many blocks; on the CPU touched by as many threads as will use them. Throws.
  KvMemory(const Model& model, const Sizing& sizing, std::int32_t num_blocks,
           ArenaKind kind = ArenaKind::kPrivate);

  [[nodiscard]] KvView view() const;
  // What other processes of the host may map: nothing of a device.
  [[nodiscard]] ArenaFile file() const;

 private:
  std::unique_ptr<DeviceKv> device_;
  std::optional<KvArena> host_;
};

// Bound to the memory, which outlives it as the model does. Throws.
[[nodiscard]] LocalInstance make_engine(const ServeOptions& options, const Sizing& sizing,
                                        const Model& model, const KvView& kv);

}  // namespace sluice
