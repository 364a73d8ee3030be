// What an instance says of itself when it calls another one, and whether KV can go from
// who says so to who hears it. Internal to net/.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "net/kv_connections.h"
#include "net/peer_links.h"
#include "net/peer_stream.h"
#include "net/proto/cluster.pb.h"

namespace sluice {

// To be completed with whom it means to call.
[[nodiscard]] proto::PeerMessage make_hello(const PeerOptions& options);
// Not OK: FAILED_PRECONDITION, and why.
[[nodiscard]] grpc::Status check_hello(const proto::PeerHello& hello, const PeerOptions& options);

// What the target answers: how KV may come.
void say_welcome(const PeerStream& stream, const KvWayList& kv, proto::PeerMessage& message);
// The source's part of that, where the welcome offers connections for KV alone; `address` is
// where the stream goes.
void call_for_kv(const KvWayList& kv, const PeerStream& stream, const std::string& address,
                 const proto::PeerWelcome& welcome);

}  // namespace sluice
