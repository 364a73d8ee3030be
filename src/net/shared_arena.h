// An arena that other processes of the same host may read: who offers it says which
// descriptor it is, who wants to read it opens that through /proc and maps it.
//
// The kernel decides who may (the same user, or a privileged one). What is opened is
// believed only if it is that very file, sealed against shrinking, so that no later
// truncation can make a read fault. Internal to net/.
#pragma once

#include <memory>
#include <optional>

#include "memory/kv_arena.h"
#include "net/proto/cluster.pb.h"
#include "transfer/peer_transfer.h"

namespace sluice {

// None: the arena is not in memory that can be shared.
[[nodiscard]] std::optional<proto::SharedArena> offer_arena(const ArenaFile& file);
// Null: it is of another host, or cannot be opened here.
[[nodiscard]] std::shared_ptr<const PeerArena> open_arena(const proto::SharedArena& offer);

}  // namespace sluice
