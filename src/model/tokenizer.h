// Text to tokens and back. Immutable after loading: any thread may use it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"

namespace sluice {

struct TokenizeOptions {
  bool add_special = true;     // the model's begin-of-sequence token and the like
  bool parse_special = false;  // read "<|im_start|>" as one token
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // kInvalidArgument: the text is not UTF-8.
  [[nodiscard]] virtual Result<std::vector<Token>> tokenize(std::string_view text,
                                                            TokenizeOptions options) const = 0;
  // The token's bytes; these may be a part of a character. Empty for control
  // tokens unless `special`.
  [[nodiscard]] virtual std::string piece(Token token, bool special = false) const = 0;
  [[nodiscard]] virtual std::int32_t vocabulary_size() const = 0;
  [[nodiscard]] virtual bool is_end_of_generation(Token token) const = 0;
};

// Turns a stream of tokens into text, holding back bytes of a character whose
// rest has not come yet. One a stream.
class Detokenizer final {
 public:
  explicit Detokenizer(const Tokenizer& tokenizer, bool special = false)
      : tokenizer_(tokenizer), special_(special) {}

  // The text that became complete with this token; may be empty.
  [[nodiscard]] std::string push(Token token);
  // What is still held back, with U+FFFD for a broken character.
  [[nodiscard]] std::string finish();

 private:
  const Tokenizer& tokenizer_;
  const bool special_;
  std::string pending_;
};

}  // namespace sluice
