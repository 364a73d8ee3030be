// Guesses what a sequence will say next from what it has read and said: the tokens
// that followed the last place where it stood in the same words ("Prompt Lookup
// Decoding", Saxena 2023; "Accelerating LLM Inference with Reference", Yang 2023).
// Copies and edits of a prompt, quotations, code and lists repeat themselves so.
//
// Matches are found as LZ77 compressors find them: a table has the last place of
// every three tokens, and each place the one before it of the same hash. A token is
// entered once, in O(1), and a guess looks at a few places: nothing is scanned.
//
// It also knows how likely its guesses are to be right: as those of this sequence
// lately, and at first as those of others. Where that is too little to pay for their
// rows, one is computed now and then, ever more seldom, to notice when it changes.
//
// Pure; part of its Sequence. Guesses need not be right: the engine keeps what the
// sequence's own sampler draws (sequence.h).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ids.h"
#include "engine/draft_rates.h"

namespace sluice {

class Drafter final {
 public:
  static constexpr std::int32_t kLeastMatch = 3;  // tokens that must be the same
  static constexpr std::int32_t kMostMatch = 24;  // more of them make no match better
  static constexpr std::int32_t kMostPlaces = 8;  // that one guess looks at
  // Steps without any before one is tried; twice as many each time that it was wrong.
  static constexpr std::int32_t kLeastPause = 16;
  static constexpr std::int32_t kMostPause = 128;
  static constexpr std::int32_t kNextPause = 2;  // after one that was right

  // At most `most` tokens that may follow `tokens`, which are those of the last call
  // and what has come since; none if nothing matches. Valid until the next call.
  // `seen` is what others' guesses were worth: the first call begins with that.
  [[nodiscard]] std::span<const Token> guess(std::span<const Token> tokens, std::int32_t most,
                                             const DraftRates& seen);
  // As guess() found last.
  [[nodiscard]] std::span<const Token> drafts() const { return drafts_; }
  void clear() { drafts_.clear(); }
  // That a guess is right if those before it are; 1: it should be tried in any case.
  [[nodiscard]] double acceptance() const { return trial_due() ? 1 : rates_.of(match_); }
  // The first `tried` guesses were computed, and the first `right` of these were drawn.
  // `seen` takes it in as well.
  void observe(std::int32_t tried, std::int32_t right, DraftRates& seen);

 private:
  [[nodiscard]] bool trial_due() const { return passed_over_ > pause_; }

  void enter(std::span<const Token> tokens);
  void grow(std::span<const Token> tokens);
  [[nodiscard]] std::size_t slot(std::span<const Token> tokens, std::size_t end) const;
  // Where the best match ends; 0: there is none.
  [[nodiscard]] std::size_t best_match(std::span<const Token> tokens);

  // Places are ends of matches: the index of the token that followed. 0: none.
  std::vector<std::int32_t> last_;    // by hash; a power of two of slots
  std::vector<std::int32_t> before_;  // by place: the one before it of the same hash
  std::vector<Token> drafts_;
  std::int32_t match_ = 0;  // its tokens
  DraftRates rates_;
  std::int32_t passed_over_ = 0;  // steps in which there were guesses and none was computed
  std::int32_t pause_ = kLeastPause;
};

}  // namespace sluice
