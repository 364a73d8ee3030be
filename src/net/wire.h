// The values of cluster/serving.h and scheduling/load_report.h as messages.
//
// Encoding cannot fail. Decoding trusts nobody: enumerations, sizes and times are
// checked, and what no honest peer sends is kInvalidArgument with the limit's
// number; nothing here reaches a CHECK. Times travel relative to `now`, the moment
// at which a message is made or read, so that no two clocks are compared.
// Internal to net/.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <variant>

#include "base/result.h"
#include "base/time.h"
#include "cluster/handoff_messages.h"
#include "cluster/handoff_stats.h"
#include "engine/engine_stats.h"
#include "engine/request.h"
#include "net/proto/cluster.pb.h"
#include "scheduling/load_report.h"
#include "transfer/kv_messages.h"

namespace sluice {

// What one message may hold.
struct WireLimits {
  std::int32_t vocabulary = 1 << 24;              // tokens are below it
  std::int32_t max_sequence = 1 << 24;            // tokens of a prompt and its output
  std::int32_t max_text = 1 << 20;                // bytes of one text
  std::int32_t max_list = 1 << 16;                // entries of any other list
  Duration max_span = std::chrono::hours(87600);  // between a time and the message's
};

void encode(const Request& request, TimePoint now, proto::Request& message);
void encode(const TokenEvent& event, proto::TokenEvent& message);
void encode(const LoadReport& report, proto::LoadReport& message);
void encode(const EngineStats& stats, TimePoint now, proto::EngineStats& message);
void encode(const FixedHistogram<12>& histogram, proto::Histogram& message);

[[nodiscard]] Result<Request> decode(const proto::Request& message, TimePoint now,
                                     const WireLimits& limits);
[[nodiscard]] Result<TokenEvent> decode(const proto::TokenEvent& message, const WireLimits& limits);
// Instance and incarnation are the receiver's to know; measured_at becomes `now`.
[[nodiscard]] Result<LoadReport> decode(const proto::LoadReport& message, TimePoint now,
                                        const WireLimits& limits);
[[nodiscard]] Result<EngineStats> decode(const proto::EngineStats& message, TimePoint now,
                                         const WireLimits& limits);

// --- Between instances, in wire_handoff.cpp --------------------------------------

using PeerWord = std::variant<HandoffMessage, KvMessage>;

// What only the one that hands over says.
[[nodiscard]] bool said_by_source(const PeerWord& word);
// About so many bytes.
[[nodiscard]] std::size_t wire_size(const HandoffMessage& message);

void encode(const HandoffMessage& message, TimePoint now, proto::Word& word);
void encode(KvMessage&& message, proto::Word& word);
// `kv` is what both ends of the stream have agreed on. Takes the bytes out of `word`.
[[nodiscard]] Result<PeerWord> decode(proto::Word& word, TimePoint now, const KvIdentity& kv,
                                      const WireLimits& limits);

// Each process numbers the others on its own: on the wire instances are their processes.
using ProcessOf = std::function<std::uint64_t(InstanceId)>;
using PlacementOf = std::function<std::optional<Placement>(std::uint64_t process)>;
void encode(const HandoffReport& report, TimePoint now, const ProcessOf& process_of,
            proto::HandoffReport& message);
// `from`: whose report it is. Of decisions that name a process unknown here that part is left out.
[[nodiscard]] Result<HandoffReport> decode(const proto::HandoffReport& message, TimePoint now,
                                           InstanceId from, const PlacementOf& placement_of,
                                           const WireLimits& limits);

}  // namespace sluice
