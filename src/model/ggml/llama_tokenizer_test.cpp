#include <gtest/gtest.h>
#include <llama.h>

#include <fstream>
#include <iterator>
#include <sstream>

#include "base/rng.h"
#include "model/ggml/text_test_models.h"
#include "model/utf8.h"

namespace sluice {
namespace {

std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string detokenize(const Tokenizer& tokenizer, const std::vector<Token>& tokens, bool special) {
  Detokenizer detokenizer(tokenizer, special);
  std::string text;
  for (const Token token : tokens) text += detokenizer.push(token);
  return text + detokenizer.finish();
}

// llama.cpp ships, for each pre-tokenizer, texts and the tokens that the model's
// own tokenizer gives for them.
class Vocabulary : public ::testing::TestWithParam<const char*> {};

TEST_P(Vocabulary, GivesTheTokensOfTheModelsOwnTokenizer) {
  const std::string path = testing::test_file(
      "SLUICE_LLAMA_SOURCE", std::string("models/ggml-vocab-") + GetParam() + ".gguf");
  if (path.empty()) GTEST_SKIP() << "no such vocabulary below the folder SLUICE_LLAMA_SOURCE";
  const LlamaText* model = testing::text_model(path);
  ASSERT_NE(model, nullptr);

  const std::string inputs = read_all(path + ".inp");
  std::ifstream expected(path + ".out");
  static constexpr std::string_view kSeparator = "\n__ggml_vocab_test__\n";
  std::string line;
  int compared = 0;
  for (std::size_t at = 0; std::getline(expected, line);) {
    const std::size_t end = inputs.find(kSeparator, at);
    const std::string text = inputs.substr(at, end == std::string::npos ? end : end - at);
    at = end == std::string::npos ? inputs.size() : end + kSeparator.size();
    std::istringstream numbers(line);
    const std::vector<Token> want{std::istream_iterator<Token>(numbers), {}};
    const auto got = model->tokenizer().tokenize(text, {.add_special = false});
    if (!is_utf8(text)) {
      EXPECT_FALSE(got.has_value());
      continue;
    }
    ASSERT_TRUE(got.has_value()) << got.error().message;
    EXPECT_EQ(*got, want) << text;
    ++compared;
  }
  EXPECT_GT(compared, 30);
}

INSTANTIATE_TEST_SUITE_P(LlamaCpp, Vocabulary,
                         ::testing::Values("llama-spm", "llama-bpe", "qwen2", "qwen35", "phi-3",
                                           "gemma-4", "gpt-2", "starcoder", "command-r",
                                           "deepseek-llm", "deepseek-coder", "falcon", "mpt",
                                           "refact"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name) {
                             if (c == '-') c = '_';
                           }
                           return name;
                         });

TEST(LlamaTokenizer, AnyTextComesBack) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  Rng rng(3);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    const auto length = 1 + rng.below(60);
    for (std::uint64_t i = 0; i < length; ++i) {
      static constexpr std::uint32_t kTops[] = {0x80, 0x500, 0x3100, 0xA000, 0xD800, 0x1F900};
      // This vocabulary has no token for some control characters.
      std::uint32_t c = 32 + static_cast<std::uint32_t>(rng.below(kTops[rng.below(6)] - 33));
      if (c >= 0xD800 && c <= 0xDFFF) c = 0x1F600;
      append_utf8(text, c);
    }
    const auto tokens = model.tokenizer().tokenize(text, {.add_special = false});
    ASSERT_TRUE(tokens.has_value());
    ASSERT_EQ(detokenize(model.tokenizer(), *tokens, false), text) << "round " << round;
  }
}

TEST(LlamaTokenizer, ReadsSpecialTokensOnlyWhenAsked) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  const std::string text = "<|im_start|>user";
  const auto plain = model.tokenizer().tokenize(text, {.add_special = false});
  const auto special =
      model.tokenizer().tokenize(text, {.add_special = false, .parse_special = true});
  ASSERT_TRUE(plain && special);
  EXPECT_GT(plain->size(), special->size());
  EXPECT_EQ(special->size(), 2U);
  EXPECT_EQ(detokenize(model.tokenizer(), *special, true), text);
  EXPECT_EQ(detokenize(model.tokenizer(), *special, false), "user");
  EXPECT_EQ(detokenize(model.tokenizer(), *plain, false), text);
}

TEST(LlamaTokenizer, RefusesWhatIsNotText) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  for (const std::string_view text : {"a\xFF", "\xC3", "\xED\xA0\x80"}) {
    const auto tokens = model.tokenizer().tokenize(text, {});
    ASSERT_FALSE(tokens.has_value());
    EXPECT_EQ(tokens.error().code, ErrorCode::kInvalidArgument);
  }
}

TEST(LlamaTokenizer, TokensOutOfRangeAreEmpty) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  const Tokenizer& tokenizer = model.tokenizer();
  const std::int32_t size = tokenizer.vocabulary_size();
  EXPECT_EQ(size, 49152);
  for (const Token token : {-1, size, size + 1, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer.piece(token, true), "");
    EXPECT_FALSE(tokenizer.is_end_of_generation(token));
  }
  EXPECT_TRUE(tokenizer.is_end_of_generation(2));  // <|im_end|>
  EXPECT_FALSE(tokenizer.is_end_of_generation(1));
}

// Patterns of long runs have broken tokenizers by deep recursion.
TEST(LlamaTokenizer, LongRunsOfOneCharacter) {
  SLUICE_SMOLLM2_OR_SKIP(model);
  for (const char* unit : {"a", " ", "\n", "1", "!", "\xE4\xBD\xA0"}) {
    std::string text;
    while (text.size() < 200'000) text += unit;
    const auto tokens = model.tokenizer().tokenize(text, {.add_special = false});
    ASSERT_TRUE(tokens.has_value());
    EXPECT_EQ(detokenize(model.tokenizer(), *tokens, false), text);
  }
}

TEST(LoadTextModel, SaysWhatIsWrong) {
  EXPECT_EQ(load_text_model("no/such/file.gguf").error().code, ErrorCode::kNotFound);
  const std::string path = ::testing::TempDir() + "/sluice_not_a_model.gguf";
  std::ofstream(path) << "not a model at all, but long enough to be read as one";
  EXPECT_EQ(load_text_model(path).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
