// What the engine asks of the KV manager for a new sequence, and the answers.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/ids.h"
#include "base/time.h"
#include "memory/hidden_length.h"
#include "memory/length_forecast.h"

namespace sluice {

// A block of which the first tokens are wanted in another one (a prefix that
// matched in part). The engine has it copied before the sequence's first step.
struct PrefixCopy {
  BlockId from;
  BlockId to;
  std::int32_t num_tokens = 0;
};

struct AdmissionRequest {
  SequenceId id;
  std::span<const Token> tokens;  // all known: the prompt, and what a restart had generated
  std::int32_t generated = 0;     // of `tokens`, those that were generated before a restart
  std::int32_t decode_cap = 0;    // most tokens still to be generated
  std::int32_t priority = 0;
  bool reuse_prefix = true;  // false: all of it is to be computed
  // KV of tokens [0, restored_tokens) is kept elsewhere: after the admission the
  // caller copies what was not cached into the table and says written().
  std::int32_t restored_tokens = 0;
  // Or KV of at most so many tokens comes later, from another instance: all its
  // blocks are given at once, and are no prefix for others before arrived().
  std::int32_t arriving_tokens = 0;
  // What a block's copy to host memory and back takes, where it could be paused.
  std::optional<Duration> block_pause;
  LengthClass length_class = kAnyLength;
  HiddenLength true_length{};  // benchmarks: for the oracle alone
};

struct Admission {
  std::int32_t cached_tokens = 0;  // KV that exists; always less than tokens.size()
  std::optional<PrefixCopy> copy;  // done by the caller before the first step
};

enum class Refusal : std::uint8_t {
  kWindow,    // what it needs until this window's end does not fit beside the grants
  kForecast,  // it would fit now, but the likely peak would not
};

}  // namespace sluice
