// KV between processes over UCX: RDMA where there is, and, where it is asked for, what else UCX
// has (shared memory, TCP).
//
// Active messages, which UCX carries in a rendezvous when they are large. UCX itself never sees
// the arena: a frame is copied out of it, sent, received elsewhere, and copied into the blocks
// under the lock that expect() and close() take, as far as they are reserved at that moment. So
// once close() has returned nothing writes those blocks any more, however late a message or an
// RDMA read is, and nobody has to wait for a peer; once cancel() has returned nothing reads them.
// It costs a copy at each end beside the wire, and pins a few frames instead of the arena. A
// one-sided write could not be taken back: UCX cancels no rendezvous that has begun.
//
// A thread of its own ("kv-ucx") belongs to a process; it sleeps until UCX's descriptor wakes it.
//
// UCX trusts whoever can connect to it: over its TCP a peer may write any memory of the process,
// secret or not. So RDMA alone unless `any_network`. Internal to net/.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "base/time.h"
#include "net/kv_connections.h"

namespace sluice {

struct UcxTransferOptions {
  std::size_t frame_bytes = std::size_t{1} << 20;  // of KV; transfers to a peer take turns by it
  std::int32_t frames_in_flight = 8;               // to a peer
  std::size_t max_in_flight = 64;                  // tickets
  bool checksum = false;
  bool any_network = false;                        // not only RDMA
  Duration patience = std::chrono::seconds(5);     // until a connection is welcome
  Duration first_retry = std::chrono::seconds(1);  // doubled up to thirty
};

// `arena` is memory of the host. `wake`: poll() has something to say; called on its thread.
// kUnavailable: the program was built without UCX, or it is not installed, or finds no network.
[[nodiscard]] Result<std::unique_ptr<KvConnections>> make_ucx_transfer(const KvView& arena,
                                                                       UcxTransferOptions options,
                                                                       std::function<void()> wake);

// A device of the kernel's RDMA subsystem has a port that is up.
[[nodiscard]] bool rdma_is_there();

}  // namespace sluice
