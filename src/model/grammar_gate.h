// A sequence's grammar with its triggers: a lazy grammar lets everything pass
// until a trigger appears in the output.
//
// Owned by one Sampler.
#pragma once

#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "base/result.h"
#include "model/grammar_state.h"
#include "model/sampling_params.h"

namespace sluice {

// Patterns look at no more than twice this much of the output's end.
inline constexpr std::size_t kTriggerTail = 1024;
inline constexpr std::size_t kMaxTriggers = 64;
inline constexpr std::size_t kMaxTriggerBytes = 512;

class GrammarGate final {
 public:
  // kInvalidArgument: a trigger is not a regular expression or beyond a limit, or
  // the grammar does not begin with its prefill, or is too ambiguous.
  [[nodiscard]] static Result<GrammarGate> make(const GrammarSpec& spec,
                                                std::shared_ptr<const Grammar> grammar,
                                                std::shared_ptr<const GrammarVocabulary> vocabulary,
                                                const Tokenizer& tokenizer);

  // The grammar constrains the next token.
  [[nodiscard]] bool awake() const { return awake_; }
  [[nodiscard]] bool allows(Token token);
  // Moves on. False, and unchanged, where the token is not allowed: by the
  // grammar, or because it ends a trigger in a way that the grammar cannot follow.
  [[nodiscard]] bool accept(Token token);
  // Only while awake.
  [[nodiscard]] const std::vector<std::uint64_t>& mask() { return state_.mask(); }
  [[nodiscard]] bool can_end() const { return awake_ && state_.can_end(); }
  [[nodiscard]] bool too_complex() const { return state_.too_complex(); }

 private:
  struct Pattern {
    std::regex regex;
    bool whole = false;  // ^...$: of the whole output
  };
  GrammarGate(GrammarState state, const Tokenizer& tokenizer)
      : state_(std::move(state)), tokenizer_(&tokenizer) {}

  [[nodiscard]] Status add_triggers(const GrammarSpec& spec);
  // Where in the tail the grammar begins; npos: no trigger is there.
  [[nodiscard]] std::size_t find_trigger(std::size_t fresh) const;

  GrammarState state_;
  const Tokenizer* tokenizer_;
  bool awake_ = true;
  std::vector<std::string> words_;
  std::vector<Pattern> patterns_;
  std::vector<Token> tokens_;
  std::string tail_;         // the output's end
  bool tail_is_all_ = true;  // nothing was dropped from it
};

}  // namespace sluice
