#include "model/tokenizer.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/rng.h"
#include "model/utf8.h"

namespace sluice {
namespace {

// Token n is pieces[n].
class PieceTokenizer final : public Tokenizer {
 public:
  explicit PieceTokenizer(std::vector<std::string> pieces) : pieces_(std::move(pieces)) {}
  Result<std::vector<Token>> tokenize(std::string_view, TokenizeOptions) const override {
    return fail(ErrorCode::kInternal, "not needed here");
  }
  std::string piece(Token token, bool) const override {
    return pieces_[static_cast<std::size_t>(token)];
  }
  std::int32_t vocabulary_size() const override {
    return static_cast<std::int32_t>(pieces_.size());
  }
  bool is_end_of_generation(Token) const override { return false; }

 private:
  std::vector<std::string> pieces_;
};

std::string decode(const std::vector<std::string>& pieces) {
  const PieceTokenizer tokenizer(pieces);
  Detokenizer detokenizer(tokenizer);
  std::string text;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const std::string piece = detokenizer.push(static_cast<Token>(i));
    EXPECT_TRUE(is_utf8(piece));
    text += piece;
  }
  return text + detokenizer.finish();
}

TEST(Utf8, Table) {
  struct Case {
    std::string_view text;
    bool valid;
  };
  using namespace std::string_view_literals;
  for (const auto& [text, valid] : {
           Case{"", true},
           Case{"plain\0too"sv, true},
           Case{"h\xC3\xA9llo \xE2\x82\xAC \xF0\x9F\x98\x80", true},
           Case{"\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF",
                true},  // last before, first after, last
           Case{"\x80", false},
           Case{"\xC0\xAF", false},          // overlong '/'
           Case{"\xE0\x80\xAF", false},      // overlong, three bytes
           Case{"\xF0\x80\x80\xAF", false},  // overlong, four bytes
           Case{"\xED\xA0\x80", false},      // surrogate
           Case{"\xF4\x90\x80\x80", false},  // above U+10FFFF
           Case{"\xF8\x88\x80\x80\x80", false},
           Case{"abc\xE2\x82", false},
       }) {
    EXPECT_EQ(is_utf8(text), valid) << text;
  }
}

TEST(Utf8, EveryCodePointSurvives) {
  for (std::uint32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    append_utf8(text, c);
    const Utf8Step step = utf8_step(text);
    ASSERT_EQ(step.state, Utf8State::kValid) << c;
    ASSERT_EQ(step.code_point, c);
    ASSERT_EQ(step.length, text.size());
    for (std::size_t n = 1; n < text.size(); ++n) {
      ASSERT_EQ(utf8_step(std::string_view(text).substr(0, n)).state, Utf8State::kIncomplete) << c;
    }
  }
}

TEST(Detokenizer, HoldsBackAnIncompleteCharacter) {
  const PieceTokenizer tokenizer({"a\xF0\x9F", "\x98", "\x80z"});
  Detokenizer detokenizer(tokenizer);
  EXPECT_EQ(detokenizer.push(0), "a");
  EXPECT_EQ(detokenizer.push(1), "");
  EXPECT_EQ(detokenizer.push(2), "\xF0\x9F\x98\x80z");
  EXPECT_EQ(detokenizer.finish(), "");
}

TEST(Detokenizer, ReplacesWhatIsBroken) {
  EXPECT_EQ(decode({"a\xF0\x9F", "b"}),
            "a\xEF\xBF\xBD"
            "b");
  EXPECT_EQ(decode({"\x80\x80", "x"}), "\xEF\xBF\xBD\xEF\xBF\xBDx");
  EXPECT_EQ(decode({"end\xE2\x82"}), "end\xEF\xBF\xBD");
  EXPECT_EQ(decode({"\xED\xA0\x80"}), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(Detokenizer, AnySplitOfAnyTextReassembles) {
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    const auto length = rng.below(40);
    for (std::uint64_t i = 0; i < length; ++i) {
      static constexpr std::uint32_t kTops[] = {0x80, 0x800, 0xD800, 0x110000};
      std::uint32_t c = static_cast<std::uint32_t>(rng.below(kTops[rng.below(4)]));
      if (c >= 0xD800 && c <= 0xDFFF) c = 0x1F600;
      append_utf8(text, c);
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + rng.below(3);
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    ASSERT_EQ(decode(pieces), text) << "round " << round;
  }
}

// Split points do not change what random bytes decode to.
TEST(Detokenizer, BrokenBytesDecodeTheSameHoweverSplit) {
  Rng rng(11);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes;
    const auto length = rng.below(24);
    for (std::uint64_t i = 0; i < length; ++i) {
      static constexpr char kBytes[] = {'a',    '\x80', '\xBF', '\xC3',
                                        '\xE2', '\xED', '\xF0', '\xF4'};
      bytes.push_back(kBytes[rng.below(sizeof(kBytes))]);
    }
    std::vector<std::string> single;
    for (const char c : bytes) single.emplace_back(1, c);
    ASSERT_EQ(decode(single), decode({bytes})) << "round " << round;
  }
}

}  // namespace
}  // namespace sluice
