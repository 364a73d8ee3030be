#include "model/grammar.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/grammar_state.h"

namespace sluice {
namespace {

// Token n is pieces[n]; those that begin with "<|" are control tokens, "<end>" ends.
class TestTokenizer final : public Tokenizer {
 public:
  explicit TestTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  Result<std::vector<Token>> tokenize(std::string_view, TokenizeOptions) const override {
    return fail(ErrorCode::kInternal, "not needed here");
  }
  std::string piece(Token token, bool special) const override {
    const std::string& piece = pieces_[static_cast<std::size_t>(token)];
    return !special && (piece.starts_with("<|") || piece == "<end>") ? std::string() : piece;
  }
  std::int32_t vocabulary_size() const override {
    return static_cast<std::int32_t>(pieces_.size());
  }
  bool is_end_of_generation(Token token) const override {
    return pieces_[static_cast<std::size_t>(token)] == "<end>";
  }

 private:
  std::vector<std::string> pieces_;
};

std::shared_ptr<const GrammarVocabulary> vocabulary(std::vector<std::string> pieces) {
  return std::make_shared<GrammarVocabulary>(TestTokenizer(std::move(pieces)));
}

std::shared_ptr<const GrammarVocabulary> bytes_vocabulary() {
  std::vector<std::string> pieces;
  for (int i = 1; i < 256; ++i) pieces.emplace_back(1, static_cast<char>(i));
  pieces.emplace_back("<end>");
  return vocabulary(std::move(pieces));
}

GrammarState state_of(std::string_view gbnf,
                      std::shared_ptr<const GrammarVocabulary> words = bytes_vocabulary()) {
  auto grammar = Grammar::compile(gbnf);
  EXPECT_TRUE(grammar.has_value()) << gbnf << ": " << grammar.error().message;
  return GrammarState(*grammar, std::move(words));
}

bool matches(std::string_view gbnf, std::string_view text) {
  GrammarState state = state_of(gbnf);
  return state.accept_text(text) && state.can_end();
}

std::vector<Token> allowed(GrammarState& state) {
  std::vector<Token> tokens;
  const auto& mask = state.mask();
  for (std::size_t i = 0; i < mask.size() * 64; ++i) {
    if ((mask[i / 64] >> (i % 64) & 1) != 0) tokens.push_back(static_cast<Token>(i));
  }
  return tokens;
}

constexpr std::string_view kJson = R"(
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
)";

TEST(Grammar, Table) {
  struct Case {
    std::string_view gbnf;
    std::vector<std::string_view> yes;
    std::vector<std::string_view> no;
  };
  const std::vector<Case> cases = {
      {R"(root ::= "abc")", {"abc"}, {"", "ab", "abcd", "abd"}},
      {R"(root ::= "a" | "b" "c")", {"a", "bc"}, {"b", "ac", "abc"}},
      {R"(root ::= [a-cx])", {"a", "b", "c", "x"}, {"d", "w", ""}},
      {R"(root ::= [^a-c\n])", {"d", "A", "\xC3\xA9", "\xF0\x9F\x98\x80"}, {"a", "\n", "", "dd"}},
      {R"(root ::= [a\-z])", {"a", "-", "z"}, {"b"}},
      {R"(root ::= [a-])", {"a", "-"}, {"b"}},
      {R"(root ::= .)", {"a", "\n", "\xE2\x82\xAC"}, {"", "ab", "\xFF", "\xE2\x82"}},
      {R"(root ::= "a"*)", {"", "a", "aaaa"}, {"b", "ab"}},
      {R"(root ::= "ab"+)", {"ab", "abab"}, {"", "aba", "abb"}},
      {R"(root ::= "a"? "b")", {"b", "ab"}, {"aab", "a"}},
      {R"(root ::= "a"{3})", {"aaa"}, {"aa", "aaaa"}},
      {R"(root ::= "a"{2,})", {"aa", "aaaaaa"}, {"a", ""}},
      {R"(root ::= "a"{1,3})", {"a", "aa", "aaa"}, {"", "aaaa"}},
      {R"(root ::= "a"{0,0} "b")", {"b"}, {"ab"}},
      {R"(root ::= ("a" | "b"){2} "c")", {"aac", "abc", "bbc"}, {"ac", "aabc"}},
      {R"(root ::= ("a" | "b")+?)", {"", "a", "ba"}, {"c"}},
      {"root ::= a b # comment\na ::= \"x\" # one\n\n"
       "b ::= (\n \"y\" |\n \"z\"\n)\n",
       {"xy", "xz"},
       {"x"}},
      {R"(root ::= "\x41B\U00000043\t\"")", {"ABC\t\""}, {"ABC"}},
      {R"(root ::= [α-ω]+)", {"αβω", "λ"}, {"a", "αb", "Ω"}},
      {R"_(root ::= "(" root ")" | "")_", {"", "()", "((()))"}, {"(", "())"}},
      {"root ::= \"a\" x\r\nx ::= \"b\"\r\n", {"ab"}, {"a"}},
      // Rules that may be empty, repeated: stacks must not grow for ever.
      {R"(root ::= ("a"? "b"?)+ "c")", {"c", "abc", "bbac"}, {"ab", ""}},
      {R"(root ::= (e e)* "x"
e ::= | "y")",
       {"x", "yyyx"},
       {"y"}},
      {kJson,
       {"{}", R"({"a":1})", R"({"a": [1, -2.5e3, "x\n", {"b": null}], "c":"é"})"},
       {"", "{", "[]", R"({"a"})", R"({"a":01x})", "{\"\x01\":1}"}},
  };
  for (const Case& c : cases) {
    for (const auto text : c.yes) EXPECT_TRUE(matches(c.gbnf, text)) << c.gbnf << " on " << text;
    for (const auto text : c.no) EXPECT_FALSE(matches(c.gbnf, text)) << c.gbnf << " on " << text;
  }
}

TEST(Grammar, SaysWhatIsWrong) {
  struct Case {
    std::string gbnf;
    std::string message;  // a part of it
  };
  std::string deep = "root ::= ";
  for (int i = 0; i < 200; ++i) deep += "(";
  for (const auto& [gbnf, message] : std::vector<Case>{
           {"", "no rule `root`"},
           {"foo ::= \"a\"", "no rule `root`"},
           {"root ::= foo", "uses the rule `foo`"},
           {"root ::= \"a", "does not end"},
           {"root ::= [a", "does not end"},
           {"root ::= [", "does not end"},
           {"root ::= [a-", "does not end"},
           {"root ::= []", "matches nothing"},
           {"root ::= [z-a]", "ends before it begins"},
           {"root ::= \"\\q\"", "unknown escape"},
           {"root ::= \"\\", "unknown escape"},
           {"root ::= \"\\x4\"", "hexadecimal"},
           {"root ::= \"\\UFFFFFFFF\"", "above U+10FFFF"},
           {"root ::= *", "did not expect '*'"},
           {"root ::= \"\"*", "nothing to repeat"},
           {"root ::= (\"a\"", "expected )"},
           {"root ::= \"a\")", "did not expect ')'"},
           {"root ::= \"a\"{5,2}", "ends before it begins"},
           {"root ::= \"a\"{", "expected a number"},
           {"root ::= \"a\"{1", "expected }"},
           {"root ::= \"a\"{20000}", "the limit is 10000"},
           {"root ::= \"a\"{99999999999999999999}", "too large"},
           {"root ::= (((\"a\"{10000}){10000}){10000}){9}{9000}{9000}", ""},
           {"root ::= <nope>", "not one token"},
           {"root ::= <[12", "does not end"},
           {"root : \"a\"", "expected ::="},
           {"root ::= root \"a\" | \"b\"", "left-recursive at the rule `root`"},
           {"root ::= a\na ::= b \"x\"\nb ::= e a | \"y\"\ne ::= f\nf ::= \"\"", "left-recursive"},
           {"root ::= (root)* \"a\"", "left-recursive"},
           {"root ::= root", "no text begins the rule `root`"},
           {"root ::= a \"x\"\na ::= n b\nb ::= a\nn ::= \"\"", "no text begins the rule `root`"},
           {"root ::= root | \"x\"", ""},
           {deep, "deeper than 100"},
           {"root ::= \"\xFF\"", "UTF-8"},
           {std::string("root ::= \"a\0b\"", 14), "UTF-8"},
           {std::string((1 << 20) + 1, ' '), "the limit is 1048576"},
       }) {
    if (message.empty()) {  // large, but legal: it only has to end
      EXPECT_TRUE(Grammar::compile(gbnf).has_value());
      continue;
    }
    const auto grammar = Grammar::compile(gbnf);
    ASSERT_FALSE(grammar.has_value()) << gbnf;
    EXPECT_EQ(grammar.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(grammar.error().message.find(message), std::string::npos) << grammar.error().message;
  }
}

TEST(Grammar, LimitsItsSize) {
  std::string gbnf = "root ::= ";
  for (int i = 0; i < 100; ++i) gbnf += "[a-z]{10000} ";
  const auto grammar = Grammar::compile(gbnf);
  ASSERT_FALSE(grammar.has_value());
  EXPECT_NE(grammar.error().message.find("500000"), std::string::npos);
}

TEST(GrammarState, TokensOfSeveralCharacters) {
  const auto words = vocabulary({"a", "ab", "abc", "b", "bc", "c", "d", "<end>"});
  GrammarState state = state_of(R"(root ::= "ab" "c"* )", words);
  EXPECT_EQ(allowed(state), (std::vector<Token>{0, 1, 2}));
  EXPECT_FALSE(state.accept(3));
  ASSERT_TRUE(state.accept(0));
  EXPECT_EQ(allowed(state), (std::vector<Token>{3, 4}));
  ASSERT_TRUE(state.accept(4));
  EXPECT_EQ(allowed(state), (std::vector<Token>{5, 7}));
  EXPECT_TRUE(state.allows(7));
  EXPECT_FALSE(state.allows(6));
  EXPECT_FALSE(state.allows(-1));
  EXPECT_FALSE(state.allows(8));
}

TEST(GrammarState, TokensThatEndInsideACharacter) {
  const auto words =
      vocabulary({"\xE2", "\x82", "\xAC", "\xE2\x82", "\x82\xAC", "\xC3", "x", "\xE3"});
  GrammarState state = state_of("root ::= \"\xE2\x82\xAC\"", words);
  EXPECT_EQ(allowed(state), (std::vector<Token>{0, 3}));
  ASSERT_TRUE(state.accept(0));
  EXPECT_FALSE(state.can_end());
  EXPECT_EQ(allowed(state), (std::vector<Token>{1, 4}));
  ASSERT_TRUE(state.accept(4));
  EXPECT_TRUE(state.can_end());

  GrammarState any = state_of(R"(root ::= [^x]+)", words);
  EXPECT_EQ(allowed(any), (std::vector<Token>{0, 3, 5, 7}));
  ASSERT_TRUE(any.accept(5));
  EXPECT_EQ(allowed(any), (std::vector<Token>{1, 2}));
}

TEST(GrammarState, ControlTokensMustBeSpelledOut) {
  const auto words = vocabulary({"<", "|", "a", "<|call|>", "<|x|>", "<end>"});
  GrammarState text = state_of(R"(root ::= [^"]*)", words);
  EXPECT_EQ(allowed(text), (std::vector<Token>{0, 1, 2, 5}));
  GrammarState call = state_of(R"(root ::= "<|call|>" [^"]*)", words);
  EXPECT_EQ(allowed(call), (std::vector<Token>{0, 3}));
  ASSERT_TRUE(call.accept(3));
  EXPECT_FALSE(call.accept(4));
}

TEST(GrammarState, TokenTerminals) {
  const auto words = vocabulary({"a", "b", "<|x|>", "<end>"});
  const auto find = [](std::string_view name) -> std::optional<Token> {
    return name == "<|x|>" ? std::optional<Token>(2) : std::nullopt;
  };
  GrammarState state(*Grammar::compile(R"(root ::= "a" <|x|> !<[0]> "b")", find), words);
  ASSERT_TRUE(state.accept(0));
  EXPECT_EQ(allowed(state), (std::vector<Token>{2}));
  ASSERT_TRUE(state.accept(2));
  EXPECT_EQ(allowed(state), (std::vector<Token>{1, 2}));
  ASSERT_TRUE(state.accept(2));
  ASSERT_TRUE(state.accept(1));
  EXPECT_EQ(allowed(state), (std::vector<Token>{3}));
}

// What the mask says and what accept() does are two ways to the same answer.
TEST(GrammarState, MaskAgreesWithAcceptOnRandomWalks) {
  std::vector<std::string> pieces = {"<end>"};
  Rng rng(5);
  static constexpr std::string_view kLetters = "{}[]\":,ab01-.e \n\\u\xC3\xA9\xE2\x82\xAC";
  for (int i = 0; i < 400; ++i) {
    std::string piece;
    const auto length = 1 + rng.below(4);
    for (std::uint64_t k = 0; k < length; ++k) piece += kLetters[rng.below(kLetters.size())];
    pieces.push_back(piece);
  }
  const auto words = vocabulary(pieces);
  const auto grammar = *Grammar::compile(kJson);
  for (int walk = 0; walk < 60; ++walk) {
    GrammarState state(grammar, words);
    std::string text;
    for (int i = 0; i < 40; ++i) {
      const std::vector<Token> may = allowed(state);
      std::vector<Token> checked;
      for (std::size_t t = 0; t < pieces.size(); ++t) {
        if (state.allows(static_cast<Token>(t))) checked.push_back(static_cast<Token>(t));
      }
      ASSERT_EQ(may, checked) << text;
      if (may.empty()) break;
      const Token token = may[rng.below(may.size())];
      if (token == 0) break;
      ASSERT_TRUE(state.accept(token));
      text += pieces[static_cast<std::size_t>(token)];
      GrammarState again(grammar, words);
      ASSERT_TRUE(again.accept_text(text)) << text;
      ASSERT_EQ(again.can_end(), state.can_end()) << text;
    }
  }
}

TEST(GrammarState, AmbiguityIsLimited) {
  // Each x doubles the number of ways in which the text may go on.
  GrammarState state = state_of(R"(root ::= "x" root "a" | "x" root "b" | "x")");
  bool accepted = true;
  for (int i = 0; i < 40 && accepted && !state.too_complex(); ++i) accepted = state.accept('x' - 1);
  EXPECT_TRUE(state.too_complex());
}

// A place where no text goes on is one like others: nothing may come next.
TEST(GrammarState, ADeadEndAllowsNothing) {
  GrammarState state = state_of("root ::= \"a\" b | \"b\"\nb ::= b");
  EXPECT_EQ(allowed(state), (std::vector<Token>{'b' - 1}));
  EXPECT_FALSE(state.accept('a' - 1));
  ASSERT_TRUE(state.accept('b' - 1));
  EXPECT_TRUE(state.can_end());
}

TEST(GrammarState, LongTextsKeepTheAutomatonSmall) {
  GrammarState state = state_of(kJson);
  ASSERT_TRUE(state.accept_text("{\"a\":["));
  Rng rng(1);
  for (int i = 0; i < 20'000; ++i) {
    const std::string number = std::to_string(rng.below(100'000)) + ",";
    for (const char c : number) ASSERT_TRUE(state.accept(c - 1));
  }
  // Nesting, too: every level is a new place.
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(state.accept('[' - 1));
  for (int i = 0; i < 5000; ++i) ASSERT_TRUE(state.accept(']' - 1));
  ASSERT_TRUE(state.accept_text("]}"));
  EXPECT_TRUE(state.can_end());
  EXPECT_FALSE(state.too_complex());
}

}  // namespace
}  // namespace sluice
