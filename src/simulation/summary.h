// What a run was worth: what its clients saw, and how its instances were used.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "simulation/device.h"
#include "simulation/world.h"

namespace sluice {

// A request is good if its first token came within ttft + factor x its own
// prefill time on an idle device, and its tokens followed at tpot on average.
struct ServiceLevel {
  double ttft_s = 2;
  double ttft_prefill_factor = 3;
  double tpot_s = 0.05;
};

struct Quantiles {
  double mean = 0;
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};
[[nodiscard]] Quantiles quantiles_of(std::vector<double> values);

struct Summary {
  std::size_t requests = 0;
  std::size_t completed = 0;
  std::size_t refused = 0;  // busy or too large
  std::size_t failed = 0;   // any other error
  std::size_t good = 0;
  double seconds = 0;     // from the first arrival to the last end
  double offered = 0;     // requests a second while they arrived
  double goodput = 0;     // good ones a second while they arrived
  double attainment = 0;  // good / requests
  Quantiles ttft_s;
  Quantiles tpot_s;
  Quantiles gap_s;          // between any two tokens of an answer, pauses and all
  Quantiles longest_gap_s;  // of an answer
  Quantiles e2e_s;
  Quantiles second_s;  // from the first token to the second: what a handoff delays
  double output_tokens_per_s = 0;
  double cached_share = 0;  // of prompt tokens
  std::int64_t preemptions = 0;
  std::int64_t steps = 0;
  double utilization = 0;  // busy share of the instances while requests arrived
  double imbalance = 0;    // largest / mean of the instances' KV tokens, averaged over samples
  HandoffCounts handoffs;  // of all instances
  std::uint64_t hash = 0;
};

// `devices`: by node.
[[nodiscard]] Summary summarize(const World& world, const Trace& trace,
                                const std::vector<const DeviceProfile*>& devices,
                                const ServiceLevel& level);

// Time to first token, and time per token after it, of those that completed.
[[nodiscard]] std::vector<double> ttfts(const World& world);
[[nodiscard]] std::vector<double> tpots(const World& world);

// Of several runs that differ by seed.
[[nodiscard]] Summary mean_of(const std::vector<Summary>& runs);

}  // namespace sluice
