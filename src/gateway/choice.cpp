#include "gateway/choice.h"

#include <algorithm>
#include <utility>

namespace sluice {

namespace {

void append(std::vector<ChatDelta>& to, std::vector<ChatDelta> from) {
  for (ChatDelta& delta : from) to.push_back(std::move(delta));
}

}  // namespace

Choice::Choice(ChoiceOptions options, const Tokenizer& tokenizer)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      detokenizer_(tokenizer, options_.keep_special),
      stops_(options_.stops, options_.include_stop) {}

Increment Choice::on_event(const TokenEvent& event) {
  Increment out;
  if (finished()) return out;
  cached_tokens_ = std::max(cached_tokens_, event.cached_tokens);
  if (!begun_) begin(event.prompt_scores, out);
  if (options_.prompt_only) {
    error_ = event.error;
    const bool failed =
        event.finish == FinishReason::kError || event.finish == FinishReason::kCancelled;
    end(failed ? event.finish : FinishReason::kLength, out);
    return out;
  }
  if (event.has_token) {
    ++generated_tokens_;
    logprob_sum_ += static_cast<double>(event.token.logprob);
    if (!event.token.end_of_generation) add_token(event.token, out);
  }
  if (event.finish == FinishReason::kStop && !event.has_token) {
    ++generated_tokens_;  // the one that ended the turn: not shown, but drawn
    logprob_sum_ += static_cast<double>(event.token.logprob);
  }
  if (stops_.stopped()) {
    end(FinishReason::kStop, out);
  } else if (event.finish != FinishReason::kNone) {
    error_ = event.error;
    const auto& stops = options_.stop_tokens;
    if (event.finish == FinishReason::kStop &&
        std::find(stops.begin(), stops.end(), event.token.token) != stops.end()) {
      stop_reason_ = StopReason{{}, event.token.token};
    }
    end(event.finish, out);
  }
  return out;
}

// The prompt is the first part of an answer that repeats it.
void Choice::begin(const std::vector<ScoredToken>& scores, Increment& out) {
  begun_ = true;
  out.first = true;
  prompt_scores_ = scores;
  if (options_.echo.empty()) return;
  text_ = options_.echo;
  out.text = options_.echo;
  shown_bytes_ = options_.echo.size();
  if (!options_.want_logprobs) return;
  for (std::size_t i = 0; i < options_.prompt.size(); ++i) {
    static const ScoredToken kUnknown;
    const ScoredToken& score = i > 0 && i <= scores.size() ? scores[i - 1] : kUnknown;
    // A token that begins every sequence is not in the text.
    const std::string shown = piece(options_.prompt[i]);
    const bool in_text = std::string_view(options_.echo).substr(raw_bytes_).starts_with(shown);
    LogprobText entry = entry_for(options_.prompt[i], score.top, i > 0 || in_text);
    entry.logprob = score.logprob;
    entry.known = &score != &kUnknown;
    add_logprob(std::move(entry), out);
  }
}

LogprobText Choice::entry_for(Token token, const std::vector<TokenLogprob>& top,
                              bool special) const {
  const auto label = [this](Token id, bool with_special) {
    return options_.tokens_as_ids ? "token_id:" + std::to_string(id)
                                  : tokenizer_.piece(id, with_special);
  };
  LogprobText entry;
  const std::string text = tokenizer_.piece(token, special);
  entry.bytes = options_.tokens_as_ids ? label(token, special) : text;
  entry.text_bytes = text.size();
  entry.characters = static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) >> 6) != 2; }));
  for (const TokenLogprob& other : top) {
    entry.top.emplace_back(label(other.token, true), other.logprob);
  }
  return entry;
}

void Choice::add_text(std::string text, Increment& out) {
  std::string shown = stops_.push(text);
  shown_bytes_ += shown.size();
  if (shown.empty()) return;
  if (options_.parser) {
    append(out.deltas, options_.parser->push(shown));
  } else {
    text_ += shown;
    out.text += shown;
  }
}

void Choice::add_token(const SampledToken& token, Increment& out) {
  if (options_.want_logprobs) {
    LogprobText entry = entry_for(token.token, token.top, options_.keep_special);
    entry.logprob = token.logprob;
    add_logprob(std::move(entry), out);
  }
  if (options_.want_token_ids) {
    token_ids_.push_back(token.token);
    out.token_ids.push_back(token.token);
  }
  add_text(detokenizer_.push(token.token), out);
}

void Choice::add_logprob(LogprobText entry, Increment& out) {
  entry.begin_byte = raw_bytes_;
  entry.text_offset = raw_characters_;
  raw_bytes_ += entry.text_bytes;
  raw_characters_ += entry.characters;
  logprobs_.push_back(entry);
  out.logprobs.push_back(std::move(entry));
}

void Choice::end(FinishReason reason, Increment& out) {
  finish_ = reason;
  out.finished = true;
  if (stops_.stopped()) stop_reason_ = StopReason{stops_.matched(), -1};
  if (!stops_.stopped()) {
    add_text(detokenizer_.finish(), out);
    std::string held = stops_.stopped() ? std::string() : stops_.finish();
    shown_bytes_ += held.size();
    if (options_.parser && !held.empty()) {
      append(out.deltas, options_.parser->push(held));
    } else {
      text_ += held;
      out.text += held;
    }
  } else if (options_.want_logprobs) {
    // Tokens of the stop string are not part of the answer.
    const auto hidden = [this](const LogprobText& entry) {
      return entry.begin_byte >= shown_bytes_ && entry.text_bytes > 0;
    };
    std::erase_if(logprobs_, hidden);
    std::erase_if(out.logprobs, hidden);
  }
  if (options_.parser) append(out.deltas, options_.parser->finish());
}

std::string_view Choice::finish_reason() const {
  if (finish_ == FinishReason::kLength) return "length";
  if (options_.parser && !options_.parser->message().tool_calls.empty()) return "tool_calls";
  return "stop";
}

const ChatMessage& Choice::message() const {
  static const ChatMessage kEmpty;
  return options_.parser ? options_.parser->message() : kEmpty;
}

}  // namespace sluice
