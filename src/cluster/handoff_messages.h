// The words of a handoff: how a running sequence goes from one instance to
// another (CN119512748A), as plain values that any channel can carry.
//
//   source                                     target
//     ReserveAsk  ------------------------------>
//     <------------------------  Granted | Refused
//     (KV goes over, see transfer/)
//     Beat        ------------------------------>   while nothing else is said
//     <-------------------------------------  Alive
//     Commit      ------------------------------>   all KV is there: run it
//     <-------------------------------------  Taken   its first token is out
//     Released    ------------------------------>   the source has let go
//
// Channels may lose, repeat and reorder. Every message names its attempt, so a
// late one is recognised; who does not know an attempt says Lost. Stamps are
// times of the target's clock, which the source only sends back.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/ids.h"
#include "base/kv_layout.h"
#include "base/result.h"
#include "base/time.h"
#include "engine/request.h"
#include "scheduling/placement.h"
#include "transfer/handoff_key.h"

namespace sluice {

// Whose a request is, for who has to be told of it.
struct RequestOrigin {
  RequestId request;
  std::int32_t attempt = 0;  // Request::attempt
  std::uint64_t gateway = 0;
  std::string trace_id;
};
[[nodiscard]] inline RequestOrigin origin_of(const Request& request) {
  return {request.id, request.attempt, request.gateway, request.trace_id};
}

// KV can be read only by who computes the same with it.
struct KvIdentity {
  std::uint64_t model = 0;  // of weights, vocabulary and KV rows
  KvLayout layout;
  friend bool operator==(const KvIdentity&, const KvIdentity&) = default;
};

struct ReserveAsk {
  HandoffKey key;
  Request request;
  std::vector<Token> generated;  // known so far
  std::int32_t room_tokens = 0;  // KV of at most so many tokens will be sent
  KvIdentity kv;
};

// The target holds [0, held_tokens) as a prefix already; `blocks` are those for
// [held_tokens, room_tokens), in order.
struct Granted {
  HandoffKey key;
  std::int32_t held_tokens = 0;
  std::vector<BlockId> blocks;
  std::int32_t room_tokens = 0;
  std::string memory;  // how a transfer reaches its arena; empty: the same process
  TimePoint stamp{};
  friend bool operator==(const Granted&, const Granted&) = default;
};

enum class RefusalKind : std::uint8_t {
  kNotBefore,  // room is likely after `after`
  kNever,      // this instance can never take it; `error` says why
};
struct Refused {
  HandoffKey key;
  RefusalKind kind = RefusalKind::kNotBefore;
  Duration after{};
  Error error;
};

// The source is there still. `echo`: the newest stamp that it has of the target.
struct Beat {
  HandoffKey key;
  TimePoint echo{};
};
struct Alive {
  HandoffKey key;
  TimePoint stamp{};
};

// All that the target needs to go on as the source would have.
struct Commit {
  HandoffKey key;
  TimePoint echo{};
  std::vector<Token> generated;    // all of them
  std::int32_t kv_tokens = 0;      // KV of [0, kv_tokens) is there
  std::int32_t cached_tokens = 0;  // of the prompt, at its first admission
  bool announced = false;          // its first event has left
  friend bool operator==(const Commit&, const Commit&) = default;
};

// The first token is out: from here on the target has it. Said until Released.
struct Taken {
  HandoffKey key;
  bool finished = false;  // and its last event is out as well
};
struct Released {
  HandoffKey key;
};

// The source wants it back. Where it has started the target has it all the same,
// and says so. `cancel`: nobody wants it any more; where it runs already it ends
// with its event. `superseded`: another has it; it is dropped without a word.
struct Abort {
  HandoffKey key;
  bool cancel = false;
  bool superseded = false;
};
// The target does not have it: given back, out of time, or never heard of.
struct Lost {
  HandoffKey key;
};

using HandoffMessage =
    std::variant<ReserveAsk, Granted, Refused, Beat, Alive, Commit, Taken, Released, Abort, Lost>;

// To one incarnation of one instance: another one ignores it.
struct HandoffMail {
  Placement from;
  Placement to;
  HandoffMessage message;
};

[[nodiscard]] inline HandoffKey key_of(const HandoffMessage& message) {
  return std::visit([](const auto& m) { return m.key; }, message);
}

}  // namespace sluice
