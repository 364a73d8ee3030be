// What a World is made of, and what it gives: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/global_scheduler.h"
#include "cluster/handoff_source.h"
#include "simulation/decode_choice.h"
#include "simulation/network.h"
#include "simulation/node.h"

namespace sluice {

struct WorldOptions {
  std::vector<NodeOptions> nodes;  // one an instance
  std::string policy = "forecast";
  PlacementLimits limits;
  GlobalSchedulerOptions scheduler{.keep_inputs = false};
  NetworkOptions network;
  HandoffOptions handoff;
  DecodeChoice decode;
  std::vector<Fault> faults;
  std::uint64_t seed = 1;
  std::int32_t max_tokens = 0;  // of requests that do not say; 0: the least power of two
                                // that no answer of the trace exceeds
  Duration gone_after = std::chrono::seconds(10);  // an instance not heard of counts as lost
  Duration time_limit = std::chrono::hours(24 * 30);
  Duration sample_interval{};  // of the instances' load, for plots; zero: none
  bool true_lengths = false;   // tell them to the oracle's memory policy, which nobody else is
  bool keep_tokens = false;    // answers keep what was generated, for tests
};

struct Answer {
  TimePoint arrival{};
  TimePoint first{};   // token, or end
  TimePoint second{};  // token, if there is one
  TimePoint last{};
  Duration longest_gap{};   // between two tokens
  std::int32_t tokens = 0;  // the end of the turn included
  std::int32_t cached = 0;
  FinishReason finish = FinishReason::kNone;
  ErrorCode error{};           // with kError
  std::string message;         // of the error, if tokens are kept
  InstanceId instance;         // that it was sent to or went to last
  std::vector<Token> content;  // if kept; without the end of the turn
};

// Of all instances at one time, by instance.
struct LoadSample {
  TimePoint at{};
  std::vector<float> kv_share;  // of the blocks, granted
  std::vector<std::int32_t> kv_tokens;
  std::vector<std::int32_t> running;
  std::vector<std::int32_t> waiting;
};

}  // namespace sluice
