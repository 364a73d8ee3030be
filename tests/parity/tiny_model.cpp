#include "tiny_model.h"

#include <fmt/format.h>
#include <gguf.h>

#include <cmath>
#include <memory>
#include <numeric>
#include <random>

#include "base/check.h"

namespace sluice::testing {
namespace {

struct GgufDelete {
  void operator()(gguf_context* c) const { gguf_free(c); }
};
struct GgmlDelete {
  void operator()(ggml_context* c) const { ggml_free(c); }
};

void set_vocabulary(gguf_context* out) {
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<std::int32_t> types = {2, 3, 3};  // unknown, control, control
  for (int byte = 0; byte < 256; ++byte) {
    tokens.push_back(fmt::format("<0x{:02X}>", byte));
    types.push_back(6);  // byte
  }
  while (static_cast<std::int32_t>(tokens.size()) < kTinyVocabulary) {
    tokens.push_back(fmt::format("word{}", tokens.size()));
    types.push_back(1);  // normal
  }
  std::vector<const char*> texts;
  for (const std::string& token : tokens) texts.push_back(token.c_str());
  const std::vector<float> scores(tokens.size(), -1.0F);
  gguf_set_val_str(out, "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(out, "tokenizer.ggml.tokens", texts.data(), texts.size());
  gguf_set_arr_data(out, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
  gguf_set_arr_data(out, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  gguf_set_val_u32(out, "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(out, "tokenizer.ggml.eos_token_id", 2);
}

void set_keys(gguf_context* out, const TinyModel& m) {
  const std::string prefix = m.architecture + ".";
  const auto number = [&](const char* key, std::int32_t value) {
    gguf_set_val_u32(out, (prefix + key).c_str(), static_cast<std::uint32_t>(value));
  };
  const auto real = [&](const char* key, float value) {
    gguf_set_val_f32(out, (prefix + key).c_str(), value);
  };
  gguf_set_val_str(out, "general.architecture", m.architecture.c_str());
  gguf_set_val_str(out, "general.name", "tiny");
  number("block_count", m.num_layers);
  number("context_length", m.context);
  number("embedding_length", m.embedding);
  number("feed_forward_length", m.ffn);
  number("attention.head_count", m.num_heads);
  number("attention.head_count_kv", m.num_kv_heads);
  number("attention.key_length", m.head_dim);
  number("attention.value_length", m.head_dim);
  real("attention.layer_norm_rms_epsilon", 1e-5F);
  number("rope.dimension_count", m.rope_dimensions != 0 ? m.rope_dimensions : m.head_dim);
  real("rope.freq_base", 10000.0F);
  if (!m.rope_scaling.empty()) {
    gguf_set_val_str(out, (prefix + "rope.scaling.type").c_str(), m.rope_scaling.c_str());
  }
  if (m.rope_factor != 0.0F) real("rope.scaling.factor", m.rope_factor);
  if (m.rope_attention_factor != 0.0F) real("rope.scaling.attn_factor", m.rope_attention_factor);
  if (m.original_context != 0) number("rope.scaling.original_context_length", m.original_context);
  if (m.sliding_window != 0) number("attention.sliding_window", m.sliding_window);
  if (m.window_period != 0) number("attention.sliding_window_pattern", m.window_period);
  if (m.num_experts != 0) {
    number("expert_count", m.num_experts);
    number("expert_used_count", m.num_experts_used);
    number("expert_feed_forward_length", m.ffn);
  }
  set_vocabulary(out);
}

void add_attention(std::vector<TinyTensor>& out, const TinyModel& m, const std::string& prefix) {
  const std::int64_t n = m.embedding;
  const std::int64_t q = std::int64_t{m.num_heads} * m.head_dim;
  const std::int64_t kv = std::int64_t{m.num_kv_heads} * m.head_dim;
  const bool head_norms = m.architecture.starts_with("qwen3") || m.architecture == "gemma3";
  const auto add = [&](const char* name, ggml_type type, std::vector<std::int64_t> shape) {
    out.push_back({prefix + name, type, std::move(shape)});
  };
  add("attn_norm.weight", GGML_TYPE_F32, {n});
  if (m.fused_qkv) {
    add("attn_qkv.weight", m.type, {n, q + 2 * kv});
    if (m.qkv_bias) add("attn_qkv.bias", GGML_TYPE_F32, {q + 2 * kv});
  } else {
    add("attn_q.weight", m.type, {n, q});
    add("attn_k.weight", m.type, {n, kv});
    add("attn_v.weight", m.type, {n, kv});
    if (m.qkv_bias) {
      add("attn_q.bias", GGML_TYPE_F32, {q});
      add("attn_k.bias", GGML_TYPE_F32, {kv});
      add("attn_v.bias", GGML_TYPE_F32, {kv});
    }
  }
  if (head_norms) {
    add("attn_q_norm.weight", GGML_TYPE_F32, {m.head_dim});
    add("attn_k_norm.weight", GGML_TYPE_F32, {m.head_dim});
  }
  add("attn_output.weight", m.type, {q, n});
  if (m.out_bias) add("attn_output.bias", GGML_TYPE_F32, {n});
  if (m.architecture == "gemma3") add("post_attention_norm.weight", GGML_TYPE_F32, {n});
}

void add_ffn(std::vector<TinyTensor>& out, const TinyModel& m, const std::string& prefix) {
  const std::int64_t n = m.embedding;
  const std::int64_t ff = m.ffn;
  const auto add = [&](const char* name, ggml_type type, std::vector<std::int64_t> shape) {
    out.push_back({prefix + name, type, std::move(shape)});
  };
  add("ffn_norm.weight", GGML_TYPE_F32, {n});
  if (m.architecture == "gemma3") add("post_ffw_norm.weight", GGML_TYPE_F32, {n});
  if (m.num_experts > 0) {
    const std::int64_t e = m.num_experts;
    add("ffn_gate_inp.weight", GGML_TYPE_F32, {n, e});
    add("ffn_gate_exps.weight", m.type, {n, ff, e});
    add("ffn_up_exps.weight", m.type, {n, ff, e});
    add("ffn_down_exps.weight", m.type, {ff, n, e});
    return;
  }
  const bool fused = m.architecture == "phi3";
  if (!fused) add("ffn_gate.weight", m.type, {n, ff});
  add("ffn_up.weight", m.type, {n, fused ? 2 * ff : ff});
  add("ffn_down.weight", m.type, {ff, n});
  if (m.out_bias) {
    add("ffn_gate.bias", GGML_TYPE_F32, {ff});
    add("ffn_up.bias", GGML_TYPE_F32, {ff});
    add("ffn_down.bias", GGML_TYPE_F32, {n});
  }
}

std::vector<TinyTensor> list_tensors(const TinyModel& m) {
  std::vector<TinyTensor> out;
  const std::int64_t rope = (m.rope_dimensions != 0 ? m.rope_dimensions : m.head_dim) / 2;
  out.push_back({"token_embd.weight", m.type, {m.embedding, kTinyVocabulary}});
  out.push_back({"output_norm.weight", GGML_TYPE_F32, {m.embedding}});
  if (!m.tied) out.push_back({"output.weight", m.type, {m.embedding, kTinyVocabulary}});
  if (m.output_bias) out.push_back({"output.bias", GGML_TYPE_F32, {kTinyVocabulary}});
  if (m.rope_freqs) out.push_back({"rope_freqs.weight", GGML_TYPE_F32, {rope}});
  if (m.long_rope_factors) {
    out.push_back({"rope_factors_long.weight", GGML_TYPE_F32, {rope}});
    out.push_back({"rope_factors_short.weight", GGML_TYPE_F32, {rope}});
  }
  for (std::int32_t i = 0; i < m.num_layers; ++i) {
    const std::string prefix = fmt::format("blk.{}.", i);
    add_attention(out, m, prefix);
    add_ffn(out, m, prefix);
  }
  return out;
}

std::vector<float> random_values(const TinyTensor& tensor, std::mt19937_64& rng) {
  std::int64_t count = 1;
  for (const std::int64_t n : tensor.shape) count *= n;
  std::vector<float> values(static_cast<std::size_t>(count));
  float low = -1.0F;
  float high = 1.0F;
  if (tensor.name.find("rope_f") != std::string::npos) {
    low = 1.0F;
    high = tensor.name.find("long") != std::string::npos ? 6.0F : 2.0F;
  } else if (tensor.name.find("norm") != std::string::npos) {
    low = 0.6F;
    high = 1.4F;
  } else if (tensor.name.find("bias") != std::string::npos) {
    low = -0.3F;
    high = 0.3F;
  } else if (tensor.name != "token_embd.weight") {
    // Rows of about unit gain keep activations, and so attention, lively.
    high = 2.0F / std::sqrt(static_cast<float>(tensor.shape[0]));
    low = -high;
  }
  std::uniform_real_distribution<float> uniform(low, high);
  for (float& value : values) value = uniform(rng);
  return values;
}

}  // namespace

void write_tiny_model(const TinyModel& model, const std::string& path) {
  const std::unique_ptr<gguf_context, GgufDelete> file(gguf_init_empty());
  set_keys(file.get(), model);
  if (model.edit_keys) model.edit_keys(file.get());
  std::vector<TinyTensor> tensors = list_tensors(model);
  if (model.edit_tensors) model.edit_tensors(tensors);

  const std::size_t bytes = (tensors.size() + 1) * ggml_tensor_overhead() + (std::size_t{64} << 20);
  const std::unique_ptr<ggml_context, GgmlDelete> context(
      ggml_init({bytes, nullptr, /*no_alloc=*/false}));
  std::mt19937_64 rng(model.seed);
  for (const TinyTensor& t : tensors) {
    ggml_tensor* tensor =
        ggml_new_tensor(context.get(), t.type, static_cast<int>(t.shape.size()), t.shape.data());
    ggml_set_name(tensor, t.name.c_str());
    const std::vector<float> values = random_values(t, rng);
    const std::int64_t rows = ggml_nelements(tensor) / tensor->ne[0];
    ggml_quantize_chunk(t.type, values.data(), tensor->data, 0, rows, tensor->ne[0], nullptr);
    gguf_add_tensor(file.get(), tensor);
  }
  CHECK(gguf_write_to_file(file.get(), path.c_str(), /*only_meta=*/false));
}

}  // namespace sluice::testing
