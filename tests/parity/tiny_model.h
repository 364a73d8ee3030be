// Tiny GGUF models of random weights, with a vocabulary that libllama accepts.
#pragma once

#include <ggml.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

struct gguf_context;

namespace sluice::testing {

struct TinyTensor {
  std::string name;
  ggml_type type = GGML_TYPE_F32;
  std::vector<std::int64_t> shape;
};

struct TinyModel {
  std::string architecture = "llama";
  std::int32_t num_layers = 2;
  std::int32_t embedding = 64;
  std::int32_t num_heads = 4;
  std::int32_t num_kv_heads = 2;
  std::int32_t head_dim = 16;
  std::int32_t ffn = 96;
  std::int32_t num_experts = 0;
  std::int32_t num_experts_used = 0;
  std::int32_t context = 512;
  std::int32_t original_context = 0;  // of rope scaling; 0: not written
  std::int32_t rope_dimensions = 0;   // 0: the head's
  std::string rope_scaling = {};      // empty: not written
  float rope_factor = 0.0F;
  float rope_attention_factor = 0.0F;
  std::int32_t sliding_window = 0;
  std::int32_t window_period = 0;  // 0: not written
  bool tied = true;
  bool qkv_bias = false;
  bool fused_qkv = false;
  bool out_bias = false;  // of attention's and the FFN's products
  bool output_bias = false;
  bool rope_freqs = false;
  bool long_rope_factors = false;
  ggml_type type = GGML_TYPE_F32;  // of matrices
  std::uint64_t seed = 1;

  // Changes made to what is written, for tests of damaged files.
  std::function<void(gguf_context*)> edit_keys = {};
  std::function<void(std::vector<TinyTensor>&)> edit_tensors = {};
};

// Number of tokens of every tiny model's vocabulary.
inline constexpr std::int32_t kTinyVocabulary = 320;

// Writes the model; CHECKs that it can.
void write_tiny_model(const TinyModel& model, const std::string& path);

}  // namespace sluice::testing
