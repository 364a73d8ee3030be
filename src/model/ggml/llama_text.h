// The text side of a GGUF model: its vocabulary, chat template and samplers, by
// libllama and llama-common.
//
// A LlamaText owns a vocabulary-only llama_model (the file is mapped, no weights
// are read) and everything that points into it. Immutable after loading: any
// thread may use it. What it makes (samplers, parsers) must not outlive it.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "model/chat.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

struct llama_model;

namespace sluice {

// `vocabulary` and `tokenizer` must outlive what is made from them.
[[nodiscard]] std::unique_ptr<Tokenizer> make_llama_tokenizer(const llama_model& vocabulary);
[[nodiscard]] std::unique_ptr<SamplerFactory> make_llama_samplers(const llama_model& vocabulary,
                                                                  const Tokenizer& tokenizer);
// An empty `chat_template` takes the model's own, or ChatML where it has none.
// kInvalidArgument: the template does not parse.
[[nodiscard]] Result<std::unique_ptr<ChatTemplate>> make_llama_chat(
    const llama_model& vocabulary, const std::string& chat_template = {});

class LlamaText {
 public:
  virtual ~LlamaText() = default;
  [[nodiscard]] virtual const Tokenizer& tokenizer() const = 0;
  [[nodiscard]] virtual const ChatTemplate& chat() const = 0;
  [[nodiscard]] virtual const SamplerFactory& samplers() const = 0;
};

// kNotFound: no such file; kInvalidArgument: not a GGUF file, damaged, or
// without a vocabulary.
[[nodiscard]] Result<std::unique_ptr<LlamaText>> load_text_model(
    const std::string& path, const std::string& chat_template = {});

}  // namespace sluice
