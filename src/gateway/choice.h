// One generation as its client sees it: from token events to text, message
// parts, log probabilities and a finish reason.
//
// Lives on the connection's I/O thread. A Choice keeps the whole answer, and
// says of each event what it added.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "engine/request.h"
#include "gateway/stop_strings.h"
#include "model/chat.h"
#include "model/tokenizer.h"

namespace sluice {

struct LogprobText {
  std::string bytes;  // of the token; may be a part of a character
  float logprob = 0;
  bool known = true;  // false: of a prompt's first token, which nothing predicts
  std::vector<std::pair<std::string, float>> top;
  std::size_t text_offset = 0;  // in characters of the text
  std::size_t begin_byte = 0;   // the same in bytes
  std::size_t text_bytes = 0;   // of the token
  std::size_t characters = 0;   // that begin in it
};

// What one event added.
struct Increment {
  std::string text;               // without a parser
  std::vector<ChatDelta> deltas;  // with one
  std::vector<LogprobText> logprobs;
  std::vector<Token> token_ids;  // if they are asked for
  bool first = false;            // this is the choice's first increment
  bool finished = false;

  [[nodiscard]] bool empty() const {
    return text.empty() && deltas.empty() && logprobs.empty() && token_ids.empty() && !finished;
  }
};

struct ChoiceOptions {
  std::int32_t index = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t max_tokens = 0;
  std::vector<std::string> stops;
  bool include_stop = false;
  std::vector<Token> stop_tokens;
  std::unique_ptr<ChatParser> parser;  // null: plain text
  bool keep_special = false;
  bool want_logprobs = false;
  bool want_prompt_logprobs = false;  // as a field of their own
  bool want_token_ids = false;
  bool tokens_as_ids = false;  // in log probabilities, "token_id:7"
  bool prompt_only = false;    // what is generated is not wanted
  std::string echo;            // text in front of what is generated
  std::vector<Token> prompt;   // where its tokens are a part of the answer
};

// Why a choice ended: a stop string, or a token that the client named.
struct StopReason {
  std::string text;
  Token token = -1;  // with an empty text
};

class Choice final {
 public:
  Choice(ChoiceOptions options, const Tokenizer& tokenizer);

  // After `finished`, events are ignored. An event with an error finishes too;
  // see error().
  [[nodiscard]] Increment on_event(const TokenEvent& event);

  [[nodiscard]] std::int32_t index() const { return options_.index; }
  [[nodiscard]] std::int32_t prompt_tokens() const { return options_.prompt_tokens; }
  [[nodiscard]] std::int32_t max_tokens() const { return options_.max_tokens; }
  [[nodiscard]] std::int32_t generated_tokens() const { return generated_tokens_; }
  [[nodiscard]] std::int32_t cached_tokens() const { return cached_tokens_; }
  // A token, on average; where log probabilities were computed.
  [[nodiscard]] double mean_logprob() const {
    return generated_tokens_ > 0 ? logprob_sum_ / generated_tokens_ : 0.0;
  }
  void set_index(std::int32_t index) { options_.index = index; }
  // To its first token, without the queue; and from there to its last so far.
  void set_times(Duration prompt, Duration output) { prompt_time_ = prompt, output_time_ = output; }
  [[nodiscard]] Duration prompt_time() const { return prompt_time_; }
  [[nodiscard]] Duration output_time() const { return output_time_; }
  [[nodiscard]] bool wants_logprobs() const { return options_.want_logprobs; }
  [[nodiscard]] bool wants_token_ids() const { return options_.want_token_ids; }
  [[nodiscard]] bool wants_prompt_logprobs() const { return options_.want_prompt_logprobs; }
  [[nodiscard]] const std::vector<Token>& prompt() const { return options_.prompt; }
  // Of the prompt's tokens after the first.
  [[nodiscard]] const std::vector<ScoredToken>& prompt_scores() const { return prompt_scores_; }
  [[nodiscard]] const std::vector<Token>& token_ids() const { return token_ids_; }
  [[nodiscard]] std::string piece(Token token) const { return tokenizer_.piece(token, true); }

  [[nodiscard]] bool finished() const { return finish_ != FinishReason::kNone; }
  [[nodiscard]] FinishReason finish() const { return finish_; }
  // A stop string ended it: the engine does not know yet.
  [[nodiscard]] bool stopped_early() const { return stops_.stopped(); }
  [[nodiscard]] const Error& error() const { return error_; }
  // "stop", "length" or "tool_calls".
  [[nodiscard]] std::string_view finish_reason() const;
  [[nodiscard]] const std::optional<StopReason>& stop_reason() const { return stop_reason_; }

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] const ChatMessage& message() const;
  [[nodiscard]] const std::vector<LogprobText>& logprobs() const { return logprobs_; }

 private:
  void begin(const std::vector<ScoredToken>& scores, Increment& out);
  void add_logprob(LogprobText entry, Increment& out);
  [[nodiscard]] LogprobText entry_for(Token token, const std::vector<TokenLogprob>& top,
                                      bool special) const;
  void add_text(std::string text, Increment& out);
  void add_token(const SampledToken& token, Increment& out);
  void end(FinishReason reason, Increment& out);

  ChoiceOptions options_;
  const Tokenizer& tokenizer_;
  Detokenizer detokenizer_;
  StopStrings stops_;
  std::string text_;                // what the client was given, without a parser
  std::size_t raw_bytes_ = 0;       // of the tokens so far, counted for log probabilities only
  std::size_t raw_characters_ = 0;  // the same
  std::size_t shown_bytes_ = 0;
  std::vector<LogprobText> logprobs_;
  std::vector<ScoredToken> prompt_scores_;
  std::vector<Token> token_ids_;
  std::optional<StopReason> stop_reason_;
  bool begun_ = false;
  std::int32_t generated_tokens_ = 0;
  std::int32_t cached_tokens_ = 0;
  double logprob_sum_ = 0.0;
  Duration prompt_time_{};
  Duration output_time_{};
  FinishReason finish_ = FinishReason::kNone;
  Error error_;
};

}  // namespace sluice
