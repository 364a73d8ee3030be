#include <llama.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "model/ggml/llama_text.h"
#include "model/token_sampler.h"

namespace sluice {

std::unique_ptr<SamplerFactory> make_llama_samplers(const llama_model& vocabulary,
                                                    const Tokenizer& tokenizer) {
  const llama_vocab* vocab = llama_model_get_vocab(&vocabulary);
  SamplerModel model;
  model.tokenizer = &tokenizer;
  std::int32_t count = 0;
  const llama_token* suppressed = llama_vocab_get_suppress_tokens(vocab, &count);
  if (suppressed != nullptr) model.suppressed.assign(suppressed, suppressed + count);
  model.find_token = [vocab](std::string_view text) -> std::optional<Token> {
    llama_token tokens[2];
    const std::int32_t n = llama_tokenize(
        vocab, text.data(), static_cast<std::int32_t>(text.size()), tokens, 2, false, true);
    return n == 1 ? std::optional<Token>(tokens[0]) : std::nullopt;
  };
  return make_token_samplers(std::move(model));
}

}  // namespace sluice
