// Any bytes as a grammar and as text that it is tried on: an error with a message, or a state
// whose three ways to ask the same question agree. The grammar ends at the first zero byte.
#include "model/grammar.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/grammar_state.h"

namespace {

using namespace sluice;

// Every byte but zero is a token; then some of several bytes, a control token, and the end.
class ByteTokenizer final : public Tokenizer {
 public:
  Result<std::vector<Token>> tokenize(std::string_view, TokenizeOptions) const override {
    return fail(ErrorCode::kInternal, "not needed here");
  }
  std::string piece(Token token, bool special) const override {
    if (token > 0 && token < 256) return std::string(1, static_cast<char>(token));
    if (token == kControl) return special ? "<|x|>" : "";
    if (token < 256 || token == kEnd) return {};
    return kWords[token - 256];
  }
  std::int32_t vocabulary_size() const override { return kEnd + 1; }
  bool is_end_of_generation(Token token) const override { return token == kEnd; }

  static constexpr const char* kWords[] = {"ab",       "{\"",  "\":",        "true",
                                           "\xC3\xA9", "\xE2", "\x82\xAC a", "  "};
  static constexpr Token kControl = 256 + static_cast<Token>(std::size(kWords));
  static constexpr Token kEnd = kControl + 1;
};

std::optional<Token> find_token(std::string_view text) {
  return text == "<|x|>" ? std::optional(ByteTokenizer::kControl) : std::nullopt;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const auto kVocabulary = std::make_shared<const GrammarVocabulary>(ByteTokenizer());
  constexpr std::size_t kSteps = 64;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t end = input.find('\0');
  const auto grammar = Grammar::compile(input.substr(0, end), find_token);
  if (!grammar) {
    CHECK(!grammar.error().message.empty());
    return 0;
  }
  GrammarState state(*grammar, kVocabulary);
  const std::string_view text =
      end == std::string_view::npos ? std::string_view() : input.substr(end + 1, kSteps);
  for (const char byte : text) {
    // The lowest bytes stand for the tokens that are no byte.
    const Token low = static_cast<std::uint8_t>(byte);
    const Token token = 256 + low <= ByteTokenizer::kEnd ? 256 + low : low;
    const bool in_mask =
        (state.mask()[static_cast<std::size_t>(token) / 64] >> (token % 64) & 1) != 0;
    const bool allowed = state.allows(token);
    const bool accepted = state.accept(token);
    if (state.too_complex()) break;
    CHECK(in_mask == allowed);
    CHECK(in_mask == accepted);
    if (!accepted) break;
  }
  return 0;
}
