// What an instance says of itself when it calls another one, and whether KV can go from
// who says so to who hears it. Internal to net/.
#pragma once

#include <grpcpp/support/status.h>

#include "net/peer_links.h"
#include "net/proto/cluster.pb.h"

namespace sluice {

// To be completed with whom it means to call.
[[nodiscard]] proto::PeerMessage make_hello(const PeerOptions& options);
// Not OK: FAILED_PRECONDITION, and why.
[[nodiscard]] grpc::Status check_hello(const proto::PeerHello& hello, const PeerOptions& options);

}  // namespace sluice
