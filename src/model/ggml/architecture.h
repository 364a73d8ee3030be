// Which models the graph builder knows, and what a GGUF file says of its model.
//
// An Architecture is a row of a table: what makes one family of decoders differ
// from the next. The graph builder and the weight loader read it, so a further
// family that is made of the same parts is one more row. A ModelConfig is
// checked when it is read: whoever has one need not check its numbers again.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/kv_layout.h"
#include "base/result.h"
#include "model/ggml/gguf_file.h"

namespace sluice {

enum class RopeStyle : std::uint8_t { kAdjacentPairs, kHalves };  // ggml: NORMAL, NEOX
enum class FfnKind : std::uint8_t {
  kSwiGlu,       // silu(gate x) * up x
  kGeGlu,        // gelu(gate x) * up x
  kFusedSwiGlu,  // gate and up in one matrix
  kExperts,      // the best few of many small SwiGLUs
};

struct Architecture {
  const char* name;
  RopeStyle rope;
  FfnKind ffn;
  bool qk_norm = false;             // RMS norms of each head of Q and K, before rotation
  bool post_norms = false;          // norms of what attention and FFN add to the residual
  bool scaled_embedding = false;    // token embeddings times sqrt(embedding size)
  bool rope_freqs = false;          // may have a tensor that stretches rotary frequencies
  bool long_rope = false;           // may have such tensors for short and long contexts
  bool partial_rope = false;        // may rotate a part of each head only
  bool attention_out_bias = false;  // may have these
  bool ffn_bias = false;
  bool output_bias = false;
  std::int32_t window_period = 0;  // sliding windows but in each n-th layer; 0: never
};

[[nodiscard]] std::span<const Architecture> supported_architectures();

struct RopeConfig {
  std::int32_t dimensions = 0;        // of each head, even
  std::int32_t original_context = 0;  // what the model was first trained on, tokens
  float extrapolation = 0.0F;         // YaRN's mix; 0: off
  float attention_factor = 1.0F;
  float beta_fast = 32.0F;
  float beta_slow = 1.0F;
};

struct LayerConfig {
  std::int32_t sliding_window = 0;  // tokens; 0: sees all
  float rope_base = 10000.0F;
  float rope_scale = 1.0F;  // of positions
};

struct ModelConfig {
  const Architecture* architecture = nullptr;
  std::int32_t num_layers = 0;
  std::int32_t num_heads = 0;
  std::int32_t num_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t embedding_size = 0;
  std::int32_t ffn_size = 0;  // of one expert where there are experts
  std::int32_t num_experts = 0;
  std::int32_t num_experts_used = 0;
  std::int32_t vocabulary_size = 0;
  std::int32_t trained_context = 0;  // tokens
  std::int32_t sliding_window = 0;   // tokens; 0: no layer has one
  float norm_epsilon = 1e-5F;
  float attention_scale = 1.0F;
  float final_softcap = 0.0F;       // 0: off
  bool rope_needs_factors = false;  // scaling "longrope"
  RopeConfig rope;
  std::vector<LayerConfig> layers;

  [[nodiscard]] KvLayout kv_layout() const;
};

// kInvalidArgument: an architecture that is not supported (the message lists
// those that are), a key that is missing, or a number out of its range.
[[nodiscard]] Result<ModelConfig> read_model_config(const GgufFile& file);

}  // namespace sluice
