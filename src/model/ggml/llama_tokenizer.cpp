#include <llama.h>

#include <cstdint>
#include <exception>
#include <limits>
#include <string>
#include <vector>

#include "model/ggml/llama_text.h"
#include "model/utf8.h"

namespace sluice {
namespace {

// libllama counts bytes in an int32 and wants room for as many tokens.
constexpr std::size_t kMaxTextBytes = std::size_t{1} << 28;

std::string read_piece(const llama_vocab* vocab, Token token, bool special) {
  std::string piece(32, '\0');
  auto length = static_cast<std::int32_t>(piece.size());
  std::int32_t n = llama_token_to_piece(vocab, token, piece.data(), length, 0, special);
  if (n < 0) {
    piece.resize(static_cast<std::size_t>(-n));
    n = llama_token_to_piece(vocab, token, piece.data(), -n, 0, special);
  }
  piece.resize(static_cast<std::size_t>(n > 0 ? n : 0));
  return piece;
}

class LlamaTokenizer final : public Tokenizer {
 public:
  explicit LlamaTokenizer(const llama_model& model) : vocab_(llama_model_get_vocab(&model)) {
    const std::int32_t size = llama_vocab_n_tokens(vocab_);
    entries_.reserve(static_cast<std::size_t>(size) + 1);
    for (Token token = 0; token < size; ++token) {
      const std::string plain = read_piece(vocab_, token, false);
      const std::string special = read_piece(vocab_, token, true);
      entries_.push_back({static_cast<std::uint32_t>(text_.size()), plain.empty(),
                          llama_vocab_is_eog(vocab_, token)});
      text_ += special;
    }
    entries_.push_back({static_cast<std::uint32_t>(text_.size()), true, false});
  }

  Result<std::vector<Token>> tokenize(std::string_view text,
                                      TokenizeOptions options) const override {
    if (text.size() > kMaxTextBytes) {
      return fail(ErrorCode::kInvalidArgument, "the text has " + std::to_string(text.size()) +
                                                   " bytes; the limit is " +
                                                   std::to_string(kMaxTextBytes));
    }
    if (!is_utf8(text)) return fail(ErrorCode::kInvalidArgument, "the text is not valid UTF-8");
    const auto bytes = static_cast<std::int32_t>(text.size());
    std::vector<Token> tokens(text.size() / 2 + 16);
    std::int32_t n = 0;
    try {
      n = run(text, bytes, tokens, options);
      if (n < 0 && n != std::numeric_limits<std::int32_t>::min()) {
        tokens.resize(static_cast<std::size_t>(-n));
        n = run(text, bytes, tokens, options);
      }
    } catch (const std::exception&) {  // libllama looks for the token of a byte
      return fail(ErrorCode::kInvalidArgument,
                  "the model's vocabulary has no token for a byte of the text");
    }
    if (n < 0) return fail(ErrorCode::kInvalidArgument, "the text gives too many tokens");
    tokens.resize(static_cast<std::size_t>(n));
    return tokens;
  }

  std::string piece(Token token, bool special) const override {
    if (token < 0 || token >= vocabulary_size()) return {};
    const Entry& entry = entries_[static_cast<std::size_t>(token)];
    if (entry.control && !special) return {};
    const std::uint32_t end = entries_[static_cast<std::size_t>(token) + 1].begin;
    return text_.substr(entry.begin, end - entry.begin);
  }

  std::int32_t vocabulary_size() const override {
    return static_cast<std::int32_t>(entries_.size()) - 1;
  }

  bool is_end_of_generation(Token token) const override {
    if (token < 0 || token >= vocabulary_size()) return false;
    return entries_[static_cast<std::size_t>(token)].end_of_generation;
  }

 private:
  struct Entry {
    std::uint32_t begin;  // of the piece in text_; it ends where the next begins
    bool control;         // no text unless special tokens are wanted
    bool end_of_generation;
  };

  std::int32_t run(std::string_view text, std::int32_t bytes, std::vector<Token>& tokens,
                   TokenizeOptions options) const {
    return llama_tokenize(vocab_, text.data(), bytes, tokens.data(),
                          static_cast<std::int32_t>(tokens.size()), options.add_special,
                          options.parse_special);
  }

  const llama_vocab* vocab_;
  std::string text_;  // every piece, one after the other: a token costs no allocation
  std::vector<Entry> entries_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_llama_tokenizer(const llama_model& vocabulary) {
  return std::make_unique<LlamaTokenizer>(vocabulary);
}

}  // namespace sluice
