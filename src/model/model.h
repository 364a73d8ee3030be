// A model loaded from a GGUF file: everything that serving needs of it.
//
// The interfaces beside this file say what each part does; model/ggml/ holds
// their ggml and llama.cpp version. One Model is shared by all instances of a
// process: weights are mapped once, and each instance gets a runner of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "model/chat.h"
#include "model/model_info.h"
#include "model/model_runner.h"
#include "model/sampler.h"
#include "model/tokenizer.h"

namespace sluice {

struct ModelOptions {
  std::string path;                         // a .gguf file
  std::string chat_template;                // Jinja; empty: the file's own
  std::string device = "cpu";               // a Device's name (model/device.h)
  bool repack = true;                       // use faster weight layouts where ggml has them
  bool text_only = false;                   // no weights, no runners: what a gateway needs
  std::function<void(double)> on_progress;  // 0..1 while loading; may be empty
};

struct RunnerOptions {
  std::int32_t num_threads = 1;
  std::int32_t max_step_tokens = 512;   // most rows in one step
  std::int32_t max_step_outputs = 256;  // most rows of logits in one step: drawn from or scored by
  std::int32_t max_context = 4096;      // longest sequence, tokens
};

class Model {
 public:
  virtual ~Model() = default;
  [[nodiscard]] virtual const ModelInfo& info() const = 0;
  [[nodiscard]] virtual const Tokenizer& tokenizer() const = 0;
  [[nodiscard]] virtual const ChatTemplate& chat() const = 0;
  [[nodiscard]] virtual const SamplerFactory& samplers() const = 0;
  // KV memory of the device, for runners to be bound to; null on the CPU, whose arena is
  // host memory (memory/kv_arena.h). kNeverFits: the device has not that much.
  [[nodiscard]] virtual Result<std::unique_ptr<DeviceKv>> make_device_kv(
      const KvLayout& layout, std::int32_t num_blocks) const = 0;
  // The model must outlive the runner.
  [[nodiscard]] virtual Result<std::unique_ptr<ModelRunner>> make_runner(
      const RunnerOptions& options) const = 0;
};

// Loads with ggml. kInvalidArgument: not a GGUF file, damaged, or an
// architecture that is not supported (the message names it and lists those that
// are); kNotFound: no such file, or device; kNeverFits: the device is too small.
[[nodiscard]] Result<std::unique_ptr<Model>> load_gguf_model(const ModelOptions& options);

// Reads sizes and shapes from the file's header only; for `sluice inspect`.
[[nodiscard]] Result<ModelInfo> inspect_gguf(const std::string& path);

}  // namespace sluice
