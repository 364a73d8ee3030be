// load_gguf_model(): the ggml model as one object, text side and runners.
#include "model/ggml/architecture.h"
#include "model/ggml/device_kv.h"
#include "model/ggml/device_runner.h"
#include "model/ggml/devices.h"
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
            std::unique_ptr<LlamaText> text, ggml_backend_dev_t device)
      : info_(std::move(info)),
        config_(std::move(config)),
        weights_(std::move(weights)),
        text_(std::move(text)),
        device_(device) {}

  [[nodiscard]] const ModelInfo& info() const override { return info_; }
  [[nodiscard]] const Tokenizer& tokenizer() const override { return text_->tokenizer(); }
  [[nodiscard]] const ChatTemplate& chat() const override { return text_->chat(); }
  [[nodiscard]] const SamplerFactory& samplers() const override { return text_->samplers(); }

  [[nodiscard]] Result<std::unique_ptr<ModelRunner>> make_runner(
      const RunnerOptions& options) const override {
    if (weights_ == nullptr) {
      return fail(ErrorCode::kInvalidArgument, info_.id + " was loaded without its weights");
    }
    if (device_ != nullptr) return DeviceRunner::make(config_, *weights_, options, device_);
    return GgmlRunner::make(config_, *weights_, options);
  }
  [[nodiscard]] Result<std::unique_ptr<DeviceKv>> make_device_kv(
      const KvLayout& layout, std::int32_t num_blocks) const override {
    if (device_ == nullptr) return nullptr;
    return GgmlDeviceKv::make(device_, layout, num_blocks);
  }

 private:
  const ModelInfo info_;
  const ModelConfig config_;
  const std::unique_ptr<Weights> weights_;  // null: text only
  const std::unique_ptr<LlamaText> text_;
  const ggml_backend_dev_t device_;  // null: the CPU, with our own attention
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
  ggml_backend_dev_t device = options.device == "cpu" ? nullptr : ggml_device(options.device);
  if (device == nullptr && options.device != "cpu") {
    return fail(ErrorCode::kNotFound, "there is no device " + options.device);
  }
  std::unique_ptr<Weights> weights;
  if (!options.text_only) {
    TRY(weights,
        load_weights(std::move(file), config, {options.repack, device, options.on_progress}));
  }
  return std::make_unique<GgmlModel>(std::move(info), std::move(config), std::move(weights),
                                     std::move(text), device);
}

Result<ModelInfo> inspect_gguf(const std::string& path) {
  TRY(const std::unique_ptr<GgufFile> file, GgufFile::open(path));
  TRY(const ModelConfig config, read_model_config(*file));
  return describe_model(*file, config);
}

}  // namespace sluice
