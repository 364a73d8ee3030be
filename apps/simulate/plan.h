// `sluice plan`: how many instances somebody needs.
#pragma once

#include <string>

#include "simulate_options.h"

namespace sluice {

struct PlanOptions {
  SimulateOptions simulate;  // trace, policy, slo, seeds; its cluster and rates are not used
  std::string device = "h100-8b";
  double rate = 1;
  double attainment = 0.9;  // share of requests that must be good
  std::int32_t most = 256;  // instances
  std::int32_t splits = 5;  // ratios of prefill to decode instances that are tried
};

void add_plan_options(CLI::App& app, PlanOptions& options);

// Prints the least number, the curve around it, and how it moves with the rate and with
// prefill and decode apart.
// 0: found; 1: even `most` do not do.
int plan(const PlanOptions& options);

}  // namespace sluice
