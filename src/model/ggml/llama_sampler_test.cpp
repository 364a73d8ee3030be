#include <gtest/gtest.h>
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <memory>

#include "base/rng.h"
#include "model/ggml/text_test_models.h"
#include "model/grammar_state.h"
#include "model/utf8.h"

namespace sluice {
namespace {

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};
struct FreeSampler {
  void operator()(llama_sampler* sampler) const { llama_sampler_free(sampler); }
};

std::string read_all(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// libllama's grammars are the yardstick: over random walks both allow the same
// tokens. Control tokens are left out: libllama lets them pass for any text. So
// are tokens that end inside a character: of these it refuses some that may become
// one that the grammar allows.
class AgainstLlama : public ::testing::TestWithParam<const char*> {};

TEST_P(AgainstLlama, AllowsTheSameTokens) {
  const std::string path =
      testing::test_file("SLUICE_LLAMA_SOURCE", std::string("grammars/") + GetParam());
  if (path.empty()) GTEST_SKIP() << "no such grammar below the folder SLUICE_LLAMA_SOURCE";
  SLUICE_SMOLLM2_OR_SKIP(text);
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  const std::unique_ptr<llama_model, FreeModel> model(
      llama_model_load_from_file(testing::smollm2_path().c_str(), params));
  const llama_vocab* vocab = llama_model_get_vocab(model.get());
  const std::string gbnf = read_all(path);
  const auto grammar = Grammar::compile(gbnf);
  ASSERT_TRUE(grammar.has_value()) << grammar.error().message;
  const auto words = std::make_shared<const GrammarVocabulary>(text.tokenizer());

  Rng rng(17);
  const std::int32_t size = text.tokenizer().vocabulary_size();
  for (int walk = 0; walk < 4; ++walk) {
    GrammarState ours(*grammar, words);
    const std::unique_ptr<llama_sampler, FreeSampler> theirs(
        llama_sampler_init_grammar(vocab, gbnf.c_str(), "root"));
    ASSERT_NE(theirs, nullptr);
    std::string so_far;
    for (int step = 0; step < 20; ++step) {
      std::vector<llama_token_data> row;
      for (Token t = 0; t < size; ++t) row.push_back({t, 1.0F, 0.0F});
      llama_token_data_array array{row.data(), row.size(), -1, false};
      llama_sampler_apply(theirs.get(), &array);
      const auto& mask = ours.mask();
      std::vector<Token> may;
      for (Token t = 0; t < size; ++t) {
        const bool is_text = !text.tokenizer().piece(t, false).empty();
        const bool is_end = text.tokenizer().is_end_of_generation(t);
        if (!is_text && !is_end) continue;
        const bool allowed = (mask[static_cast<std::size_t>(t) / 64] >> (t % 64) & 1) != 0;
        const bool wanted = std::isfinite(row[static_cast<std::size_t>(t)].logit);
        if (allowed && !wanted && !is_utf8(text.tokenizer().piece(t, true))) continue;
        ASSERT_EQ(allowed, wanted) << "after \"" << so_far << "\": token " << t << " \""
                                   << text.tokenizer().piece(t, true) << '"';
        if (allowed && !is_end) may.push_back(t);
      }
      if (may.empty()) break;
      const Token token = may[rng.below(may.size())];
      llama_sampler_accept(theirs.get(), token);
      ASSERT_TRUE(ours.accept(token));
      so_far += text.tokenizer().piece(token, true);
    }
    EXPECT_FALSE(ours.too_complex());
  }
}

INSTANTIATE_TEST_SUITE_P(LlamaCpp, AgainstLlama,
                         ::testing::Values("json.gbnf", "json_arr.gbnf", "arithmetic.gbnf",
                                           "c.gbnf", "chess.gbnf", "english.gbnf", "japanese.gbnf",
                                           "list.gbnf"),
                         [](const auto& instance) {
                           const std::string name = instance.param;
                           return name.substr(0, name.find('.'));
                         });

TEST(LlamaSampler, ATextThatKeepsToASchema) {
  SLUICE_SMOLLM2_OR_SKIP(text);
  const auto gbnf = text.chat().schema_to_grammar(
      R"({"type":"object","properties":{"city":{"type":"string","maxLength":12},
          "days":{"type":"integer","minimum":1,"maximum":14}},"required":["city","days"]})");
  ASSERT_TRUE(gbnf.has_value());
  const auto size = static_cast<std::size_t>(text.tokenizer().vocabulary_size());
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SamplingParams params;
    params.seed = seed;
    params.grammar.gbnf = *gbnf;
    const auto sampler = text.samplers().make(params, {});
    ASSERT_TRUE(sampler.has_value()) << sampler.error().message;
    Rng rng(seed);
    std::string output;
    bool ended = false;
    for (int i = 0; i < 200 && !ended; ++i) {
      std::vector<float> logits(size);
      for (float& v : logits) v = static_cast<float>(rng.uniform() * 8);
      logits[2] = 12.0F;  // <|im_end|>, as soon as it may come
      const auto sampled = (*sampler)->sample(logits);
      ASSERT_TRUE(sampled.has_value()) << sampled.error().message;
      ended = sampled->end_of_generation;
      output += text.tokenizer().piece(sampled->token, false);
    }
    EXPECT_TRUE(ended) << output;
    const auto grammar = Grammar::compile(*gbnf);
    GrammarState state(*grammar, nullptr);
    EXPECT_TRUE(state.accept_text(output) && state.can_end()) << output;
  }
}

TEST(LlamaSampler, TokensNamedInAGrammar) {
  SLUICE_SMOLLM2_OR_SKIP(text);
  SamplingParams params;
  params.temperature = 0.0F;
  params.grammar.gbnf = "root ::= <|im_start|> \"user\"";
  const auto sampler = text.samplers().make(params, {});
  ASSERT_TRUE(sampler.has_value()) << sampler.error().message;
  std::vector<float> logits(static_cast<std::size_t>(text.tokenizer().vocabulary_size()), 0.0F);
  const auto sampled = (*sampler)->sample(logits);
  ASSERT_TRUE(sampled.has_value());
  EXPECT_EQ(text.tokenizer().piece(sampled->token, true), "<|im_start|>");
  params.grammar.gbnf = "root ::= <|no_such_token|>";
  EXPECT_EQ(text.samplers().make(params, {}).error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace sluice
