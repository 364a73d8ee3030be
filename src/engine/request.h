// What a client asked for, in tokens. Immutable once the gateway has built it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "base/time.h"
#include "model/sampler.h"
#include "model/sampling_params.h"

namespace sluice {

struct Request {
  RequestId id;
  std::vector<Token> prompt;     // at least one token
  std::int32_t max_tokens = 0;   // most tokens to generate, >= 1; always bounded
  std::int32_t priority = 0;     // higher is admitted earlier and yields later
  std::string tenant;            // shares of one priority are fair among these; may be empty
  std::string length_class;      // requests of one class have similar outputs; may be empty
  std::int32_t length_hint = 0;  // expected output tokens; 0: not said
  SamplingParams sampling;
  bool report_progress = false;  // with an event for each computed part of the prompt
  TimePoint arrival{};           // at the gateway
  std::string trace_id;          // x-request-id of its client, for logs
  std::uint64_t gateway = 0;     // the process that has its client; 0: this one
  // What instances that are lost have generated; this one goes on after it.
  std::vector<Token> output;
  std::int32_t attempt = 0;  // 0, 1, 2, ...: the how manyth placement
};

enum class FinishReason : std::uint8_t {
  kNone,       // not finished
  kStop,       // the model ended its turn
  kLength,     // max_tokens or the context is used up
  kCancelled,  // the client left, or the gateway saw a stop string
  kError,
};

// The only thing that leaves an engine about a request: one generated token, or
// its end, or both; or, before these, how much of its prompt is computed, if it
// asks for that. Indices of a request are 0, 1, 2, ... without a gap, and exactly
// one event has a finish reason: the last.
struct TokenEvent {
  RequestId request;
  std::int32_t attempt = 0;  // of the request; events of an attempt given up are ignored
  std::int32_t index = 0;    // of the token among the generated ones
  bool has_token = false;
  SampledToken token;  // without has_token and with kStop: the one that ended it
  FinishReason finish = FinishReason::kNone;
  std::int32_t cached_tokens = 0;    // prompt tokens that came from the prefix cache
  Duration queued{};                 // from arrival to admission; in the first event
  bool is_progress = false;          // neither token nor end, but ...
  std::int32_t computed_tokens = 0;  // ... so many of the prompt; these grow
  // In the first event, if SamplingParams asks for it: the prompt's tokens after its first.
  std::vector<ScoredToken> prompt_scores;
  Error error;  // with kError
};

// Receives events; one call a step, with the events of all of its sequences.
// Called on the engine's loop: implementations move the events on and return.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void on_tokens(std::vector<TokenEvent>&& events) = 0;
};

}  // namespace sluice
