// The runs of one command: every policy at every rate with every seed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cluster_file.h"
#include "simulate_options.h"
#include "simulation/fluid_limit.h"
#include "simulation/summary.h"
#include "simulation/trace.h"

namespace sluice {

struct RunKey {
  std::string policy;
  std::string memory;  // policy
  std::string decode;  // choice
  double rate = 1;
  std::uint64_t seed = 1;
};

struct RunResult {
  RunKey key;
  Summary summary;
  FluidLimit limit;
  double wall_s = 0;
  std::uint64_t events = 0;
  bool finished = true;  // before the time limit
  std::vector<std::string> violations;
  // Of the first seed only, for plots.
  std::vector<double> ttft_s;
  std::vector<double> tpot_s;
  std::vector<LoadSample> samples;
  TimePoint begin{};
};

// `base`: as read, at its own rate. `progress` is told the share done of all; any
// thread calls it, one at a time. In the order of policies, memory
// policies, decode choices, rates, seeds.
[[nodiscard]] std::vector<RunResult> run_all(const SimulateOptions& options, const Trace& base,
                                             const ClusterSpec& cluster, const ServiceLevel& level,
                                             const std::function<void(double)>& progress);

// Means over seeds, in the same order.
struct MeanResult {
  std::string policy;  // and the memory policy and decode choice, where not the default
  double rate = 1;
  Summary mean;
  double goodput_low = 0;  // over the seeds
  double goodput_high = 0;
  const RunResult* first = nullptr;
};
[[nodiscard]] std::vector<MeanResult> means_of(const std::vector<RunResult>& runs);

}  // namespace sluice
