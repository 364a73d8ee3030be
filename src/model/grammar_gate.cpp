#include "model/grammar_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice {

Result<GrammarGate> GrammarGate::make(const GrammarSpec& spec,
                                      std::shared_ptr<const Grammar> grammar,
                                      std::shared_ptr<const GrammarVocabulary> vocabulary,
                                      const Tokenizer& tokenizer) {
  GrammarGate gate(GrammarState(std::move(grammar), std::move(vocabulary)), tokenizer);
  if (spec.lazy) {
    gate.awake_ = false;
    TRY_STATUS(gate.add_triggers(spec));
  } else if (!gate.state_.accept_text(spec.prefill)) {
    return fail(ErrorCode::kInvalidArgument, "the grammar does not begin with the prompt's end");
  }
  if (gate.too_complex()) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("the grammar is too ambiguous: more than {} ways to go on", kMaxGrammarStacks));
  }
  return gate;
}

Status GrammarGate::add_triggers(const GrammarSpec& spec) {
  const std::size_t count =
      spec.trigger_words.size() + spec.trigger_patterns.size() + spec.trigger_tokens.size();
  if (count == 0) return fail(ErrorCode::kInvalidArgument, "a lazy grammar has no trigger");
  if (count > kMaxTriggers) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{} grammar triggers; the limit is {}", count, kMaxTriggers));
  }
  tokens_ = spec.trigger_tokens;
  for (const std::string& word : spec.trigger_words) {
    if (word.empty() || word.size() > kMaxTriggerBytes) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a grammar trigger has {} bytes; the limit is 1 to {}", word.size(),
                              kMaxTriggerBytes));
    }
    words_.push_back(word);
  }
  for (const std::string& pattern : spec.trigger_patterns) {
    if (pattern.empty() || pattern.size() > kMaxTriggerBytes) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("a grammar trigger has {} bytes; the limit is 1 to {}",
                              pattern.size(), kMaxTriggerBytes));
    }
    try {
      patterns_.push_back({std::regex(pattern), pattern.front() == '^' && pattern.back() == '$'});
    } catch (const std::regex_error& e) {
      return fail(ErrorCode::kInvalidArgument,
                  fmt::format("the grammar trigger `{}` is not a regular expression: {}", pattern,
                              e.what()));
    }
  }
  return {};
}

bool GrammarGate::allows(Token token) {
  if (awake_) return state_.allows(token);
  return true;  // a trigger that cannot be followed shows in accept()
}

std::size_t GrammarGate::find_trigger(std::size_t fresh) const {
  for (const std::string& word : words_) {
    // The word is new, so it ends in the fresh part.
    const std::size_t from = tail_.size() - std::min(tail_.size(), fresh + word.size() - 1);
    const std::size_t at = tail_.find(word, from);
    if (at != std::string::npos) return at;
  }
  for (const Pattern& pattern : patterns_) {
    if (pattern.whole && !tail_is_all_) continue;
    std::smatch match;
    const auto flags =
        tail_is_all_ ? std::regex_constants::match_default : std::regex_constants::match_not_bol;
    const bool found = pattern.whole ? std::regex_match(tail_, match, pattern.regex)
                                     : std::regex_search(tail_, match, pattern.regex, flags);
    if (!found) continue;
    for (std::size_t group = 1; group < match.size(); ++group) {
      if (match.length(group) > 0) return static_cast<std::size_t>(match.position(group));
    }
    return static_cast<std::size_t>(match.position(0));
  }
  return std::string::npos;
}

bool GrammarGate::accept(Token token) {
  if (awake_) return state_.accept(token);
  if (std::find(tokens_.begin(), tokens_.end(), token) != tokens_.end()) {
    awake_ = state_.accept(token);
    return awake_;
  }
  const std::string piece = tokenizer_->piece(token, true);
  tail_ += piece;
  const std::size_t at = find_trigger(piece.size());
  if (at != std::string::npos) {
    awake_ = state_.accept_text(std::string_view(tail_).substr(at));
    if (!awake_) tail_.resize(tail_.size() - piece.size());
    return awake_;
  }
  if (tail_.size() > 2 * kTriggerTail) {
    tail_.erase(0, tail_.size() - kTriggerTail);
    tail_is_all_ = false;
  }
  return true;
}

}  // namespace sluice
