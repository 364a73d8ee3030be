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
      stops_(options_.stops) {}

Increment Choice::on_event(const TokenEvent& event) {
  Increment out;
  if (finished()) return out;
  cached_tokens_ = std::max(cached_tokens_, event.cached_tokens);
  if (event.has_token) {
    ++generated_tokens_;
    if (!event.token.end_of_generation) add_token(event.token, out);
  }
  if (stops_.stopped()) {
    end(FinishReason::kStop, out);
  } else if (event.finish != FinishReason::kNone) {
    error_ = event.error;
    end(event.finish, out);
  }
  return out;
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
    LogprobText entry;
    entry.bytes = tokenizer_.piece(token.token, options_.keep_special);
    entry.logprob = token.logprob;
    entry.text_offset = raw_bytes_;
    raw_bytes_ += entry.bytes.size();
    for (const TokenLogprob& other : token.top) {
      entry.top.emplace_back(tokenizer_.piece(other.token, true), other.logprob);
    }
    logprobs_.push_back(entry);
    out.logprobs.push_back(std::move(entry));
  }
  add_text(detokenizer_.push(token.token), out);
}

void Choice::end(FinishReason reason, Increment& out) {
  finish_ = reason;
  out.finished = true;
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
      return entry.text_offset >= shown_bytes_ && !entry.bytes.empty();
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
