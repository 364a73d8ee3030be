// What `sluice simulate` is asked for.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "simulation/summary.h"

namespace CLI {
class App;
}

namespace sluice {

struct SimulateOptions {
  std::string trace;
  std::string trace_folder = "../shared/traces";
  std::string cluster = "16xh100-8b";
  std::int32_t prefill = 0;  // instances of the cluster that only prefill,
  std::int32_t decode = 0;   // and only decode
  std::vector<std::string> decode_choices{"local"};
  std::vector<std::string> policies{"round-robin", "forecast"};
  std::vector<std::string> memory_policies{"windowed"};
  std::vector<double> rates{1};  // factors on the trace's own rate
  std::int32_t seeds = 1;
  std::int32_t first_seed = 1;
  double report_delay_s = -1;  // < 0: the cluster's
  bool ledger = true;
  double from_s = 0;
  double to_s = 0;           // 0: to the end
  std::size_t requests = 0;  // 0: all
  bool spread_ticks = true;
  bool prefixes = true;  // the trace's shared blocks
  std::int32_t max_tokens = 0;
  std::string slo = "ttft=2s,tpot=50ms";
  std::int32_t jobs = 0;  // 0: one a core
  std::string out;        // folder for CSV, JSON and HTML; empty: the table only
};

void add_simulate_options(CLI::App& app, SimulateOptions& options);

// "ttft=2s,tpot=50ms,prefill=3": times with s or ms; prefill is the factor on a
// request's own unloaded prefill time. kInvalidArgument: says what is wrong.
[[nodiscard]] Result<ServiceLevel> parse_service_level(const std::string& text);

// The trace as the options want it. Throws std::runtime_error with one line.
[[nodiscard]] Trace load_trace(const SimulateOptions& options);

// Runs, prints, writes. Throws std::runtime_error with one line.
int simulate(const SimulateOptions& options);

}  // namespace sluice
