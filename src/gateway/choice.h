// One generation as its client sees it: from token events to text, message
// parts, log probabilities and a finish reason.
//
// Lives on the connection's I/O thread. A Choice keeps the whole answer, and
// says of each event what it added.
#pragma once

#include <cstdint>
#include <memory>
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
  bool known = true;  // false: of a prompt's token, which was not computed
  std::vector<std::pair<std::string, float>> top;
  std::size_t text_offset = 0;  // in bytes of the generated text
};

// What one event added.
struct Increment {
  std::string text;               // without a parser
  std::vector<ChatDelta> deltas;  // with one
  std::vector<LogprobText> logprobs;
  bool finished = false;

  [[nodiscard]] bool empty() const {
    return text.empty() && deltas.empty() && logprobs.empty() && !finished;
  }
};

struct ChoiceOptions {
  std::int32_t index = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t max_tokens = 0;
  std::vector<std::string> stops;
  std::unique_ptr<ChatParser> parser;  // null: plain text
  bool keep_special = false;
  bool want_logprobs = false;
  std::string echo;  // text in front of what is generated
  std::vector<LogprobText> echo_logprobs;
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
  [[nodiscard]] bool wants_logprobs() const { return options_.want_logprobs; }
  [[nodiscard]] const std::string& echo() const { return options_.echo; }
  [[nodiscard]] const std::vector<LogprobText>& echo_logprobs() const {
    return options_.echo_logprobs;
  }

  [[nodiscard]] bool finished() const { return finish_ != FinishReason::kNone; }
  [[nodiscard]] FinishReason finish() const { return finish_; }
  // A stop string ended it: the engine does not know yet.
  [[nodiscard]] bool stopped_early() const { return stops_.stopped(); }
  [[nodiscard]] const Error& error() const { return error_; }
  // "stop", "length" or "tool_calls".
  [[nodiscard]] std::string_view finish_reason() const;

  [[nodiscard]] const std::string& text() const { return text_; }
  [[nodiscard]] const ChatMessage& message() const;
  [[nodiscard]] const std::vector<LogprobText>& logprobs() const { return logprobs_; }

 private:
  void add_text(std::string text, Increment& out);
  void add_token(const SampledToken& token, Increment& out);
  void end(FinishReason reason, Increment& out);

  ChoiceOptions options_;
  const Tokenizer& tokenizer_;
  Detokenizer detokenizer_;
  StopStrings stops_;
  std::string text_;           // what the client was given, without a parser
  std::size_t raw_bytes_ = 0;  // generated, counted for log probabilities only
  std::size_t shown_bytes_ = 0;
  std::vector<LogprobText> logprobs_;
  std::int32_t generated_tokens_ = 0;
  std::int32_t cached_tokens_ = 0;
  FinishReason finish_ = FinishReason::kNone;
  Error error_;
};

}  // namespace sluice
