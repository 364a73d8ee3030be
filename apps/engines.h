// An engine's memory and its runner, as the options size them.
#pragma once

#include "memory/kv_arena.h"
#include "model/device.h"
#include "model/model.h"
#include "net/local_cluster.h"
#include "sizing.h"

namespace sluice {

// What --device means here. Throws.
[[nodiscard]] Device device_of(const std::string& wanted);

// So many blocks, touched by as many threads as will use them. Throws.
[[nodiscard]] KvArena make_arena(const Sizing& sizing, std::int32_t num_blocks,
                                 ArenaKind kind = ArenaKind::kPrivate);

// Bound to the arena, which outlives it as the model does. Throws.
[[nodiscard]] LocalInstance make_engine(const ServeOptions& options, const Sizing& sizing,
                                        const Model& model, const KvArena& arena);

}  // namespace sluice
