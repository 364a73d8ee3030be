#include "reference.h"

#include <llama.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "model/ggml/ggml_log.h"

namespace sluice::testing {
namespace {

double standard_deviation(std::span<const float> values) {
  double sum = 0.0;
  double squares = 0.0;
  for (const float v : values) {
    sum += v;
    squares += double{v} * v;
  }
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / n - sum / n * sum / n);
}

}  // namespace

std::unique_ptr<Reference> Reference::load(const std::string& path, std::int32_t context,
                                           bool repack) {
  route_ggml_logs();
  llama_model_params model_params = llama_model_default_params();
  model_params.use_extra_bufts = repack;
  std::unique_ptr<Reference> reference(new Reference());
  reference->model_ = llama_model_load_from_file(path.c_str(), model_params);
  if (reference->model_ == nullptr) return nullptr;
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<std::uint32_t>(context);
  params.n_batch = params.n_ctx;
  params.n_ubatch = 512;
  params.n_threads = 1;
  params.n_threads_batch = 1;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = GGML_TYPE_F16;
  params.type_v = GGML_TYPE_F16;
  reference->context_ = llama_init_from_model(reference->model_, params);
  return reference->context_ == nullptr ? nullptr : std::move(reference);
}

Reference::~Reference() {
  if (context_ != nullptr) llama_free(context_);
  if (model_ != nullptr) llama_model_free(model_);
}

std::int32_t Reference::vocabulary_size() const {
  return llama_vocab_n_tokens(llama_model_get_vocab(model_));
}

void Reference::decode(std::span<const Token> tokens, std::size_t first_output) {
  llama_memory_clear(llama_get_memory(context_), /*data=*/true);
  const auto count = static_cast<std::int32_t>(tokens.size());
  llama_batch batch = llama_batch_init(count, 0, 1);
  for (std::int32_t i = 0; i < count; ++i) {
    batch.token[i] = tokens[static_cast<std::size_t>(i)];
    batch.pos[i] = i;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = 0;
    batch.logits[i] = static_cast<std::size_t>(i) >= first_output ? 1 : 0;
  }
  batch.n_tokens = count;
  CHECK_EQ(llama_decode(context_, batch), 0);
  llama_batch_free(batch);
}

std::span<const float> Reference::row(std::size_t position) const {
  const float* values = llama_get_logits_ith(context_, static_cast<std::int32_t>(position));
  CHECK(values != nullptr);
  return {values, static_cast<std::size_t>(vocabulary_size())};
}

std::vector<std::vector<float>> Reference::logits(std::span<const Token> tokens) {
  decode(tokens, 0);
  std::vector<std::vector<float>> result;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::span<const float> values = row(i);
    result.emplace_back(values.begin(), values.end());
  }
  return result;
}

std::vector<Reference::Verdict> Reference::judge(std::span<const Token> text, std::size_t prompt) {
  CHECK_GT(prompt, 0U);
  CHECK_LT(prompt, text.size());
  decode(text.first(text.size() - 1), prompt - 1);
  std::vector<Verdict> verdicts;
  for (std::size_t i = prompt; i < text.size(); ++i) {
    const std::span<const float> values = row(i - 1);
    Verdict verdict;
    verdict.best = best_token(values);
    if (verdict.best != text[i]) {
      const float best = values[static_cast<std::size_t>(verdict.best)];
      verdict.gap =
          (double{best} - values[static_cast<std::size_t>(text[i])]) / standard_deviation(values);
    }
    verdicts.push_back(verdict);
  }
  return verdicts;
}

std::vector<Token> Reference::tokenize(const std::string& text) const {
  std::vector<Token> tokens(text.size() + 8);
  const std::int32_t count = llama_tokenize(
      llama_model_get_vocab(model_), text.data(), static_cast<std::int32_t>(text.size()),
      tokens.data(), static_cast<std::int32_t>(tokens.size()), /*add_special=*/true,
      /*parse_special=*/false);
  CHECK_GT(count, 0);
  tokens.resize(static_cast<std::size_t>(count));
  return tokens;
}

Token best_token(std::span<const float> logits) {
  return static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

}  // namespace sluice::testing
