// A GgmlRunner with KV memory of its own, driven by hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "model/ggml/device_runner.h"
#include "model/ggml/ggml_runner.h"
#include "model/ggml/weights.h"
#include "model/sampler.h"

namespace sluice::testing {

// Keeps the logits that it is given and draws the best token.
class CapturingSampler final : public Sampler {
 public:
  Status resume(std::span<const Token>) override { return {}; }
  [[nodiscard]] Result<SampledToken> sample(std::span<float> logits) override;
  [[nodiscard]] const std::vector<float>& logits() const { return logits_; }

 private:
  std::vector<float> logits_;
};

// One sequence: its tokens and the blocks that hold their KV.
struct HarnessSequence {
  std::vector<Token> tokens;  // [0, computed) have KV
  std::int32_t computed = 0;
  std::vector<BlockId> blocks;
  CapturingSampler sampler;
};

struct HarnessOptions {
  RunnerOptions runner{
      .num_threads = 1, .max_step_tokens = 128, .max_step_outputs = 32, .max_context = 512};
  std::int32_t num_blocks = 128;
  std::int32_t block_tokens = 16;
  KvType kv_type = KvType::kF16;
  bool repack = true;
  std::string device = {};  // empty: the CPU with our own attention; "cpu": with stock operations
  std::uint64_t seed = 7;   // of the order in which blocks are handed out
};

class RunnerHarness final {
 public:
  [[nodiscard]] static Result<std::unique_ptr<RunnerHarness>> load(const std::string& path,
                                                                   const HarnessOptions& options);

  // A step over the next `counts[i]` tokens of each sequence; 0: takes no part.
  // All that take part sample after their last token.
  void step(std::span<HarnessSequence*> sequences, std::span<const std::int32_t> counts);
  void release(HarnessSequence& sequence);

  // Of the CPU with our own attention.
  [[nodiscard]] GgmlRunner& runner() { return dynamic_cast<GgmlRunner&>(*runner_); }
  [[nodiscard]] DeviceRunner& device_runner() { return dynamic_cast<DeviceRunner&>(*runner_); }
  [[nodiscard]] ModelRunner& any_runner() { return *runner_; }
  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const Weights& weights() const { return *weights_; }
  [[nodiscard]] const KvView& kv() const { return kv_; }
  [[nodiscard]] BlockId take_block();

 private:
  RunnerHarness() = default;
  [[nodiscard]] Status start_on_cpu(const HarnessOptions& options, const KvLayout& layout);
  [[nodiscard]] Status start_on_device(const HarnessOptions& options, const KvLayout& layout,
                                       ggml_backend_dev_t device);

  ModelConfig config_;
  std::unique_ptr<Weights> weights_;
  std::unique_ptr<std::byte[]> arena_;
  std::unique_ptr<DeviceKv> device_kv_;
  std::unique_ptr<ModelRunner> runner_;
  KvView kv_;
  std::vector<BlockId> free_;
};

}  // namespace sluice::testing
