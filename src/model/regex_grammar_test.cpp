#include "model/regex_grammar.h"

#include <gtest/gtest.h>

#include <memory>
#include <regex>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/grammar_state.h"

namespace sluice {
namespace {

// Every byte is a token.
class Bytes final : public Tokenizer {
 public:
  Result<std::vector<Token>> tokenize(std::string_view, TokenizeOptions) const override {
    return fail(ErrorCode::kInternal, "not needed here");
  }
  std::string piece(Token token, bool) const override {
    return token == 0 ? std::string() : std::string(1, static_cast<char>(token));
  }
  std::int32_t vocabulary_size() const override { return 256; }
  bool is_end_of_generation(Token token) const override { return token == 0; }
};

bool matches(const std::string& regex, std::string_view text) {
  static const auto words = std::make_shared<GrammarVocabulary>(Bytes());
  const auto gbnf = regex_to_gbnf(regex);
  EXPECT_TRUE(gbnf) << regex << ": " << gbnf.error().message;
  const auto grammar = Grammar::compile(*gbnf);
  EXPECT_TRUE(grammar) << *gbnf << ": " << grammar.error().message;
  if (!grammar) return false;
  GrammarState state(*grammar, words);
  return state.accept_text(text) && state.can_end();
}

TEST(RegexGrammar, MatchesTheWholeText) {
  struct Case {
    const char* regex;
    std::vector<const char*> yes, no;
  };
  for (const Case& c : std::vector<Case>{
           {"abc", {"abc"}, {"ab", "abcd", ""}},
           {"", {""}, {"a"}},
           {"^a|b$", {"a", "b"}, {"ab"}},
           {"a|", {"a", ""}, {"b"}},
           {"(a|b)*c", {"c", "abbac"}, {"ab"}},
           {"(?:x(?P<y>y|z)){2}", {"xyxz"}, {"xy", "xyxzxy"}},
           {"[a-c\\d_]+?", {"b7_"}, {"", "d"}},
           {"[^a-c]", {"d", "\n"}, {"a"}},
           {"[]a]+", {"]a"}, {"b"}},
           {"[a\\-z-]+", {"a-z"}, {"b"}},
           {"\\d{2,3}", {"12", "123"}, {"1", "1234"}},
           {"\\d{2,}\\.\\w\\s\\S", {"123.a x"}, {"1.a x"}},
           {".", {"x", "\xc3\xa9"}, {"\n", "xy"}},
           {"\\x41\\u00e9\\n", {"A\xc3\xa9\n"}, {"A"}},
           {"\xc3\xa9{2}", {"\xc3\xa9\xc3\xa9"}, {"\xc3\xa9"}},
           {"\"\\\\\\[", {"\"\\["}, {"\""}},
           {"((25[0-5]|(2[0-4]|1\\d|[1-9]|)\\d)\\.){3}(25[0-5]|(2[0-4]|1\\d|[1-9]|)\\d)",
            {"127.0.0.1", "255.249.99.8"},
            {"256.0.0.1", "1.2.3", "01.2.3.4"}},
       }) {
    for (const char* text : c.yes) EXPECT_TRUE(matches(c.regex, text)) << c.regex << " on " << text;
    for (const char* text : c.no) EXPECT_FALSE(matches(c.regex, text)) << c.regex << " on " << text;
  }
}

TEST(RegexGrammar, SaysWhatItCannotDoAndWhere) {
  for (const auto& [regex, says] : std::vector<std::pair<const char*, const char*>>{
           {"[.*", "without its ]"},
           {"(a", "without its )"},
           {"a)", "without its ("},
           {"*a", "nothing to repeat"},
           {"a**", "repetition of a repetition"},
           {"a{x}", "expected {n}"},
           {"a{99999999999}", "expected {n}"},
           {"(?=a)", "lookahead"},
           {"(?<!a)", "lookbehind"},
           {"(a)\\1", "\\1 is not supported"},
           {"a\\b", "\\b is not supported"},
           {"a^b", "anchor"},
           {"(a$)", "anchor"},
           {"[z-a]", "range"},
           {"\\xg", "hexadecimal"},
           {"a\\", "ends with"},
           {"\xff", "UTF-8"},
       }) {
    const auto gbnf = regex_to_gbnf(regex);
    ASSERT_FALSE(gbnf) << regex;
    EXPECT_EQ(gbnf.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(gbnf.error().message.find(says), std::string::npos) << gbnf.error().message;
    EXPECT_NE(gbnf.error().message.find("at byte"), std::string::npos);
  }
  EXPECT_FALSE(regex_to_gbnf(std::string(1'000, '(')));
}

// The same answer as the standard library's for expressions of a small alphabet.
std::string random_regex(Rng& rng, int depth) {
  switch (rng.below(depth > 0 ? 7 : 3)) {
    case 0: return "a";
    case 1: return "b";
    case 2: return rng.below(2) == 0 ? "[ab]" : "[^a]";
    case 3: return random_regex(rng, depth - 1) + random_regex(rng, depth - 1);
    case 4: return "(" + random_regex(rng, depth - 1) + "|" + random_regex(rng, depth - 1) + ")";
    case 5: return "(?:" + random_regex(rng, depth - 1) + ")?";
    default: return "(" + random_regex(rng, depth - 1) + "){1,2}";
  }
}

TEST(RegexGrammar, AgreesWithTheStandardLibrary) {
  Rng rng(5);
  for (int round = 0; round < 150; ++round) {
    const std::string regex = random_regex(rng, 3);
    const std::regex standard(regex);
    for (int i = 0; i < 12; ++i) {
      std::string text;
      for (std::uint64_t n = rng.below(6); n > 0; --n) text += rng.below(2) == 0 ? 'a' : 'b';
      EXPECT_EQ(matches(regex, text), std::regex_match(text, standard)) << regex << " on " << text;
    }
  }
}

}  // namespace
}  // namespace sluice
