// One running generation on one instance. Owned by its Engine, used by the
// engine's loop only.
//
// Three lengths explain all of it: KV exists for tokens [0, computed); all
// tokens [0, tokens.size()) are known; the prompt is [0, prompt_tokens). A step
// computes from `computed` on, and samples when it reaches tokens.size(). KV is
// in the instance's blocks while the sequence runs, and in host memory while it
// is paused.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/drafter.h"
#include "engine/request.h"
#include "memory/kv_manager.h"
#include "model/sampler.h"

namespace sluice {

// Whether a sequence runs here, or holds memory only (engine/engine_handoff.cpp).
enum class Presence : std::uint8_t {
  kHere,
  kArriving,  // its KV is on the way from another instance
  kResting,   // its KV is kept until another instance has shown a token of it
};

struct Sequence {
  SequenceId id;
  std::unique_ptr<Request> request;
  std::unique_ptr<Sampler> sampler;
  std::vector<Token> tokens;  // the prompt, then what was generated
  std::int32_t prompt_tokens = 0;
  std::int32_t computed = 0;
  std::int32_t scored = 0;               // of the prompt, counted from its second token
  std::vector<ScoredToken> scores;       // of these; they leave with the first event
  std::int32_t cached_tokens = 0;        // of the prompt, found at the first admission
  std::optional<PrefixCopy> copy;        // to be done in its next step
  std::optional<TimePoint> admitted_at;  // first admission; unset while it never ran
  bool announced = false;                // its first event has left
  std::int32_t reported = -1;            // of `computed`, where the request asks for it
  LengthClass length_class = kAnyLength;
  std::size_t tenant = 0;            // of Tenants
  std::vector<BlockId> host_blocks;  // paused: where KV of [0, computed) is
  std::int32_t restarts = 0;         // times that it had to give way
  Drafter drafter;                   // of what it may generate in this step
  Presence presence = Presence::kHere;

  [[nodiscard]] std::int32_t known() const { return static_cast<std::int32_t>(tokens.size()); }
  [[nodiscard]] std::int32_t generated() const { return known() - prompt_tokens; }
  [[nodiscard]] std::int32_t left_to_compute() const { return known() - computed; }
  [[nodiscard]] bool paused() const { return !host_blocks.empty(); }
  // One token left means that the step's row is a decode row.
  [[nodiscard]] bool decoding() const { return left_to_compute() == 1 && generated() > 0; }
  [[nodiscard]] std::int32_t left_to_generate() const { return request->max_tokens - generated(); }
  // Guesses that the next step may compute. The token after the last of them is drawn too.
  void guess(std::int32_t most, const DraftRates& seen) {
    drafter.clear();
    if (most == 0 || !decoding() || !here()) return;
    (void)drafter.guess(tokens, std::min(most, left_to_generate() - 1), seen);
  }
  [[nodiscard]] bool here() const { return presence == Presence::kHere; }

  // A benchmark's answer, which the oracle alone can read. The end is drawn by a step
  // of its own, which writes the last token's KV.
  [[nodiscard]] HiddenLength true_length() const {
    const std::int32_t forced = request->sampling.forced_length;
    return forced > 0 ? HiddenLength(forced + 1) : HiddenLength();
  }
  [[nodiscard]] bool wants_scores() const {
    return request->sampling.prompt_logprobs >= 0 && scored < prompt_tokens - 1;
  }
  // The prompt's tokens that follow those of a chunk of `num_tokens`, to be scored by them.
  [[nodiscard]] std::span<const Token> targets(std::int32_t num_tokens) const {
    if (!wants_scores()) return {};
    const std::int32_t count = std::min(num_tokens, prompt_tokens - 1 - computed);
    return std::span(tokens).subspan(static_cast<std::size_t>(computed) + 1,
                                     static_cast<std::size_t>(std::max(count, 0)));
  }

  // How the window planner sees it: what arrives or rests, as if it decoded here,
  // so that there is room for it to do so.
  [[nodiscard]] RunningSequence view(std::int32_t held_blocks) const {
    return {.id = id,
            .held_tokens = computed,
            .held_blocks = held_blocks,
            .prefill_left = here() ? left_to_compute() : 1,
            .generated = generated(),
            .decode_cap = left_to_generate(),
            .priority = request->priority,
            .length_class = length_class,
            .true_length = true_length()};
  }
};

}  // namespace sluice
