// load_gguf_model(): the ggml model as one object, text side and runners.
#include "model/ggml/architecture.h"
#include "model/ggml/ggml_runner.h"
#include "model/ggml/inspect.h"
#include "model/ggml/llama_text.h"
#include "model/ggml/weights.h"
#include "model/model.h"

namespace sluice {
namespace {

class GgmlModel final : public Model {
 public:
  GgmlModel(ModelInfo info, ModelConfig config, std::unique_ptr<Weights> weights,
            std::unique_ptr<LlamaText> text)
      : info_(std::move(info)),
        config_(std::move(config)),
        weights_(std::move(weights)),
        text_(std::move(text)) {}

  [[nodiscard]] const ModelInfo& info() const override { return info_; }
  [[nodiscard]] const Tokenizer& tokenizer() const override { return text_->tokenizer(); }
  [[nodiscard]] const ChatTemplate& chat() const override { return text_->chat(); }
  [[nodiscard]] const SamplerFactory& samplers() const override { return text_->samplers(); }

  [[nodiscard]] Result<std::unique_ptr<ModelRunner>> make_runner(
      const RunnerOptions& options) const override {
    if (weights_ == nullptr) {
      return fail(ErrorCode::kInvalidArgument, info_.id + " was loaded without its weights");
    }
    return GgmlRunner::make(config_, *weights_, options);
  }

 private:
  const ModelInfo info_;
  const ModelConfig config_;
  const std::unique_ptr<Weights> weights_;  // null: text only
  const std::unique_ptr<LlamaText> text_;
};

}  // namespace

Result<std::unique_ptr<Model>> load_gguf_model(const ModelOptions& options) {
  TRY(std::unique_ptr<GgufFile> file, GgufFile::open(options.path));
  TRY(ModelConfig config, read_model_config(*file));
  TRY(ModelInfo info, describe_model(*file, config));
  // The text side reads the vocabulary with libllama, which trusts a file more
  // than we do: ours is checked first.
  TRY_STATUS(check_vocabulary(*file));
  TRY(std::unique_ptr<LlamaText> text, load_text_model(options.path, options.chat_template));
  std::unique_ptr<Weights> weights;
  if (!options.text_only) {
    TRY(weights, load_weights(std::move(file), config, {options.repack, options.on_progress}));
  }
  return std::make_unique<GgmlModel>(std::move(info), std::move(config), std::move(weights),
                                     std::move(text));
}

Result<ModelInfo> inspect_gguf(const std::string& path) {
  TRY(const std::unique_ptr<GgufFile> file, GgufFile::open(path));
  TRY(const ModelConfig config, read_model_config(*file));
  return describe_model(*file, config);
}

}  // namespace sluice
