// Traces from files, plain or gzip: the public ones by name, and any file in
// their formats. The format is known by the first line.
//
//   JSON lines  Mooncake (timestamp, input_length, output_length, hash_ids),
//               FlexLB (ts, il, ol, bh), agent sessions (session, agent, i, ...)
//   CSV         Azure (TIMESTAMP, ContextTokens, GeneratedTokens), BurstGPT
//               (Timestamp, Request tokens, Response tokens), offsets in ns
//               (StartTimeOffset), lengths alone (num_prefill_tokens: one a second)
//   ServeGen    MODEL_rates.csv with MODEL_lengths.jsonl beside it: drawn, seeded
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "simulation/trace.h"

namespace sluice {

struct TraceSource {
  std::string name_or_path;
  std::string folder;  // where traces with a name lie
  Duration begin{};    // of the trace's own time
  Duration end = Duration::max();
  std::uint64_t seed = 1;  // of what is drawn
};

struct NamedTrace {
  const char* name;
  const char* path;  // in the folder
};
[[nodiscard]] std::span<const NamedTrace> named_traces();

// kInvalidArgument names file, line and what is wrong there; kNotFound: no such file.
// Requests without an answer (output 0) are left out.
[[nodiscard]] Result<Trace> read_trace(const TraceSource& source);

// "REQUESTS:RATE:PROMPT:ANSWER": Poisson arrivals a second, log-normal lengths of
// these medians. kInvalidArgument: not four numbers.
[[nodiscard]] Result<Trace> parse_synthetic(const std::string& words, std::uint64_t seed);

// Of the lines themselves; `path` is for messages. For tests and other readers.
[[nodiscard]] Result<Trace> parse_trace(const std::string& path, const std::string& text);

// Reads a whole file, unpacked.
[[nodiscard]] Result<std::string> read_file(const std::string& path);

// Draws arrivals and lengths of a ServeGen client population in [begin, end).
[[nodiscard]] Result<Trace> draw_servegen(const std::string& rates, const std::string& lengths,
                                          const TraceSource& source);

}  // namespace sluice
