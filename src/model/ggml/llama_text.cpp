#include "model/ggml/llama_text.h"

#include <llama.h>
#include <log.h>

#include <mutex>
#include <utility>

#include "model/ggml/ggml_log.h"
#include "model/ggml/gguf_file.h"

namespace sluice {
namespace {

struct FreeModel {
  void operator()(llama_model* model) const { llama_model_free(model); }
};

class LoadedText final : public LlamaText {
 public:
  LoadedText(std::unique_ptr<llama_model, FreeModel> vocabulary, std::unique_ptr<ChatTemplate> chat)
      : vocabulary_(std::move(vocabulary)),
        tokenizer_(make_llama_tokenizer(*vocabulary_)),
        chat_(std::move(chat)),
        samplers_(make_llama_samplers(*vocabulary_, *tokenizer_)) {}

  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatTemplate& chat() const override { return *chat_; }
  const SamplerFactory& samplers() const override { return *samplers_; }

 private:
  std::unique_ptr<llama_model, FreeModel> vocabulary_;  // first: the others point into it
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_;
  std::unique_ptr<SamplerFactory> samplers_;
};

void start_llama() {
  static std::once_flag once;
  std::call_once(once, [] {
    route_ggml_logs();
    // llama-common writes warnings about a client's input to stderr; what is
    // wrong reaches the client as an error instead.
    common_log_set_verbosity_thold(-1);
    llama_backend_init();
  });
}

}  // namespace

Result<std::unique_ptr<LlamaText>> load_text_model(const std::string& path) {
  TRY(const auto file, GgufFile::open(path));  // says what is wrong better than libllama does
  start_llama();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = true;
  std::unique_ptr<llama_model, FreeModel> model(llama_model_load_from_file(path.c_str(), params));
  if (!model) {
    return fail(ErrorCode::kInvalidArgument, path + ": the vocabulary cannot be read");
  }
  const llama_vocab* vocabulary = llama_model_get_vocab(model.get());
  if (llama_vocab_type(vocabulary) == LLAMA_VOCAB_TYPE_NONE) {
    return fail(ErrorCode::kInvalidArgument, path + ": the file has no vocabulary");
  }
  // libllama would abort at the first text.
  if (llama_vocab_get_add_bos(vocabulary) && llama_vocab_bos(vocabulary) == LLAMA_TOKEN_NULL) {
    return fail(ErrorCode::kInvalidArgument,
                path + ": texts begin with a token that tokenizer.ggml.bos_token_id does not name");
  }
  if (llama_vocab_get_add_eos(vocabulary) && llama_vocab_eos(vocabulary) == LLAMA_TOKEN_NULL) {
    return fail(ErrorCode::kInvalidArgument,
                path + ": texts end with a token that tokenizer.ggml.eos_token_id does not name");
  }
  TRY(auto chat, make_llama_chat(*model));
  return std::make_unique<LoadedText>(std::move(model), std::move(chat));
}

}  // namespace sluice
