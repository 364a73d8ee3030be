// A trace: what clients sent, and how long each answer turned out to be.
//
// Nobody in the simulated system sees `output_tokens` but the simulated model,
// which ends an answer there. Times are relative to the trace's start, tokens
// are counts; a request with blocks shares content with every other request that
// has the same block at the same place.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"

namespace sluice {

struct TraceRequest {
  // Since the start; for a request that follows another, since the end of that one.
  Duration arrival{};
  std::int32_t after = -1;  // index of the request that it follows, or -1
  std::int32_t prompt_tokens = 1;
  std::int32_t output_tokens = 1;  // the end-of-turn token included
  std::int32_t max_tokens = 0;     // that the client allows; 0: World's option
  std::int32_t priority = 0;
  Duration cancel_after{};        // the client leaves so long after its arrival; zero: it stays
  std::uint32_t first_block = 0;  // of Trace::blocks
  std::uint32_t num_blocks = 0;
};

struct Trace {
  std::string name;
  std::int32_t block_tokens = 0;       // that a block of the trace stands for
  std::vector<std::uint64_t> blocks;   // equal ids: equal tokens
  std::vector<TraceRequest> requests;  // in the order of arrival; followers after their leader

  // Of a request: those of its blocks, then tokens of its own.
  [[nodiscard]] std::vector<Token> prompt(std::size_t request) const;
  // From the first arrival to the last that follows nobody.
  [[nodiscard]] Duration span() const;
  [[nodiscard]] std::int32_t longest_output() const;
};

// Plays it `factor` times as fast; think times stay.
void scale_rate(Trace& trace, double factor);
// Some traces record time in ticks of seconds: spreads the requests of each
// timestamp evenly until the next one. Changes nothing where timestamps are fine.
void spread_ticks(Trace& trace);
// Keeps the requests of [begin, end) and what follows them; the first of them arrives at 0.
void cut(Trace& trace, Duration begin, Duration end);
// At most so many, the earliest.
void limit(Trace& trace, std::size_t requests);
// Sorts by arrival and renumbers what follows; for readers.
void put_in_order(Trace& trace);

// Poisson arrivals with log-normal lengths of these medians, seeded.
struct SyntheticTrace {
  std::size_t requests = 1000;
  double rate = 10;  // a second
  double median_prompt = 512;
  double median_output = 128;
  double sigma = 0.8;  // of the logarithms
  std::uint64_t seed = 1;
};
[[nodiscard]] Trace synthesize(const SyntheticTrace& options);

}  // namespace sluice
