// A model's weights as ggml tensors: mapped from the file, or copied into a
// layout that this processor multiplies faster, or into a device's memory.
//
// Shared by all runners of a process and immutable after loading. Tensors point
// into the file's mapping, which this class keeps open.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "model/ggml/architecture.h"
#include "model/ggml/gguf_file.h"
#include "model/ggml/packed_matrix.h"

struct ggml_tensor;
struct ggml_backend_device;

namespace sluice {

// Null where the model has none.
struct LayerWeights {
  ggml_tensor* attn_norm = nullptr;
  ggml_tensor* qkv = nullptr;  // one matrix, or three
  ggml_tensor* q = nullptr;
  ggml_tensor* k = nullptr;
  ggml_tensor* v = nullptr;
  ggml_tensor* qkv_bias = nullptr;
  ggml_tensor* q_bias = nullptr;
  ggml_tensor* k_bias = nullptr;
  ggml_tensor* v_bias = nullptr;
  ggml_tensor* q_norm = nullptr;
  ggml_tensor* k_norm = nullptr;
  ggml_tensor* attn_out = nullptr;
  ggml_tensor* attn_out_bias = nullptr;
  ggml_tensor* attn_post_norm = nullptr;
  ggml_tensor* ffn_norm = nullptr;
  ggml_tensor* ffn_gate = nullptr;
  ggml_tensor* ffn_up = nullptr;  // holds gate and up where they are fused
  ggml_tensor* ffn_down = nullptr;
  ggml_tensor* ffn_gate_bias = nullptr;
  ggml_tensor* ffn_up_bias = nullptr;
  ggml_tensor* ffn_down_bias = nullptr;
  ggml_tensor* ffn_post_norm = nullptr;
  ggml_tensor* router = nullptr;
  ggml_tensor* gate_experts = nullptr;
  ggml_tensor* up_experts = nullptr;
  ggml_tensor* down_experts = nullptr;
};

struct ModelTensors {
  ggml_tensor* embedding = nullptr;
  ggml_tensor* output_norm = nullptr;
  ggml_tensor* output = nullptr;  // the embedding's values where the model ties them
  ggml_tensor* output_bias = nullptr;
  ggml_tensor* rope_freqs = nullptr;
  ggml_tensor* rope_long = nullptr;  // for contexts beyond RopeConfig::original_context
  ggml_tensor* rope_short = nullptr;
  std::vector<LayerWeights> layers;
};

struct WeightOptions {
  bool repack = true;                       // use faster layouts where ggml or we have them
  ggml_backend_device* device = nullptr;    // whose memory they are copied into; null: the CPU
  std::function<void(double)> on_progress;  // 0..1; may be empty
};

class Weights {
 public:
  virtual ~Weights() = default;
  [[nodiscard]] virtual const ModelTensors& tensors() const = 0;
  [[nodiscard]] virtual const GgufFile& file() const = 0;
  // Copied out of the mapping: into other layouts, or to a device.
  [[nodiscard]] virtual std::size_t copied_bytes() const = 0;
};

// The weight in our own layout where it lies in that, and so nowhere else; or null.
[[nodiscard]] const PackedMatrix* packed_matrix(const ggml_tensor& weight);

// kInvalidArgument: a tensor is missing, has another shape or a type that cannot
// be computed with, or is one that this architecture does not know; kNeverFits: the
// device has not enough memory.
[[nodiscard]] Result<std::unique_ptr<Weights>> load_weights(std::unique_ptr<GgufFile> file,
                                                            const ModelConfig& config,
                                                            const WeightOptions& options);

}  // namespace sluice
