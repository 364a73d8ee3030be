// What no policy can exceed on a trace: a limit beside every number.
//
// Work is a fluid that flows to all instances alike, without queues, memory, windows,
// rounding to steps or a network, and every token is computed in the batch that is
// cheapest for it. The seconds of a device that request i takes are at least
//
//   w = (u + o - 1) c + o h + attention(u new tokens of p, then o - 1 decode rows)
//   c = min over b of (step_s + dense(b)) / b      b <= tokens that a step may have
//   h = min over r of head(r) / r                  r <= sequences that may run
//
// with o tokens of output, and u of its p prompt tokens that no request before it has
// in common with it (a prefix cache of any size that every instance can read).
//
// Tokens a second, where every request is served: N instances need until
// max over t of (t + the work of all that arrive from t on / N), and no less than the
// longest request needs by itself.
//
// Good requests: what is good has its whole work done between its arrival and
// ttft + (o - 1) tpot after it, and its prefill within ttft. In a time of length L
// no more of those that begin and end in it can be good than the smallest whose
// work is N L. What is too much in disjoint times adds up; halves of halves of
// the trace are tried, from two beginnings. Seconds and tokens.
#pragma once

#include <cstddef>
#include <vector>

#include "simulation/device.h"
#include "simulation/summary.h"
#include "simulation/trace.h"
#include "simulation/world_options.h"

namespace sluice {

struct FluidLimit {
  double output_tokens_per_s = 0;
  std::size_t good = 0;
  double goodput = 0;  // good ones a second while they arrive
};

// `devices`: by node. Of different devices each counts as the best one.
[[nodiscard]] FluidLimit fluid_limit(const Trace& trace, const std::vector<NodeOptions>& nodes,
                                     const std::vector<const DeviceProfile*>& devices,
                                     const ServiceLevel& level);

}  // namespace sluice
