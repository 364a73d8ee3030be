#include "model/ggml/graph.h"

#include <cmath>

#include "base/check.h"
#include "model/ggml/packed_ops.h"

namespace sluice {
namespace {

constexpr std::size_t kNodesPerLayer = 96;
constexpr std::size_t kOuterNodes = 64;

class GraphBuilder {
 public:
  GraphBuilder(const ModelConfig& config, const ModelTensors& weights, GraphShape shape,
               bool long_context, const GraphHooks& hooks);
  [[nodiscard]] StepGraph build();

 private:
  struct Qkv {
    ggml_tensor* q;
    ggml_tensor* k;
    ggml_tensor* v;
  };

  [[nodiscard]] ggml_tensor* input(std::int64_t size, const char* name);
  [[nodiscard]] ggml_tensor* linear(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x);
  [[nodiscard]] ggml_tensor* product(ggml_tensor* weight, ggml_tensor* x);
  [[nodiscard]] ggml_tensor* norm(ggml_tensor* x, ggml_tensor* weight);
  [[nodiscard]] ggml_tensor* rotate(ggml_tensor* x, const LayerConfig& layer);
  [[nodiscard]] ggml_tensor* embed();
  [[nodiscard]] Qkv project(const LayerWeights& w, ggml_tensor* x);
  [[nodiscard]] ggml_tensor* ffn(const LayerWeights& w, ggml_tensor* x);
  [[nodiscard]] ggml_tensor* experts(const LayerWeights& w, ggml_tensor* x);
  // The residual stream after the layer; null after the last one where no
  // outputs are wanted.
  [[nodiscard]] ggml_tensor* layer(std::size_t index, ggml_tensor* x);
  void finish(ggml_tensor* x);

  const ModelConfig& config_;
  const Architecture& architecture_;
  const ModelTensors& weights_;
  const GraphShape shape_;
  const GraphHooks& hooks_;
  ggml_tensor* rope_factors_ = nullptr;
  // The columns last rounded for packed products, and how: Q, K and V share them.
  ggml_tensor* unrounded_ = nullptr;
  ggml_tensor* rounded_ = nullptr;
  StepGraph out_;
  ggml_context* context_ = nullptr;
};

GraphBuilder::GraphBuilder(const ModelConfig& config, const ModelTensors& weights, GraphShape shape,
                           bool long_context, const GraphHooks& hooks)
    : config_(config),
      architecture_(*config.architecture),
      weights_(weights),
      shape_(shape),
      hooks_(hooks) {
  rope_factors_ = weights.rope_freqs;
  if (rope_factors_ == nullptr) {
    rope_factors_ = long_context ? weights.rope_long : weights.rope_short;
  }
  const std::size_t nodes =
      kOuterNodes + static_cast<std::size_t>(config.num_layers) *
                        (kNodesPerLayer + 2 * static_cast<std::size_t>(config.num_experts_used));
  const std::size_t bytes =
      nodes * ggml_tensor_overhead() + ggml_graph_overhead_custom(nodes, /*grads=*/false);
  out_.context.reset(ggml_init({bytes, nullptr, /*no_alloc=*/true}));
  CHECK(out_.context != nullptr);
  context_ = out_.context.get();
  out_.graph = ggml_new_graph_custom(context_, nodes, /*grads=*/false);
}

ggml_tensor* GraphBuilder::input(std::int64_t size, const char* name) {
  ggml_tensor* tensor = ggml_new_tensor_1d(context_, GGML_TYPE_I32, size);
  ggml_set_input(tensor);
  ggml_set_name(tensor, name);
  return tensor;
}

ggml_tensor* GraphBuilder::product(ggml_tensor* weight, ggml_tensor* x) {
  const PackedMatrix* packed = packed_matrix(*weight);
  if (packed == nullptr) return ggml_mul_mat(context_, weight, x);
  if (unrounded_ != x) {
    unrounded_ = x;
    rounded_ = round_columns_node(context_, x);
  }
  return multiply_node(context_, *packed, rounded_);
}

ggml_tensor* GraphBuilder::linear(ggml_tensor* weight, ggml_tensor* bias, ggml_tensor* x) {
  ggml_tensor* y = product(weight, x);
  return bias == nullptr ? y : ggml_add(context_, y, bias);
}

ggml_tensor* GraphBuilder::norm(ggml_tensor* x, ggml_tensor* weight) {
  return ggml_mul(context_, ggml_rms_norm(context_, x, config_.norm_epsilon), weight);
}

ggml_tensor* GraphBuilder::rotate(ggml_tensor* x, const LayerConfig& layer) {
  const RopeConfig& rope = config_.rope;
  const int mode =
      architecture_.rope == RopeStyle::kHalves ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL;
  return ggml_rope_ext(context_, x, out_.positions, rope_factors_, rope.dimensions, mode,
                       rope.original_context, layer.rope_base, layer.rope_scale, rope.extrapolation,
                       rope.attention_factor, rope.beta_fast, rope.beta_slow);
}

ggml_tensor* GraphBuilder::embed() {
  ggml_tensor* x = ggml_get_rows(context_, weights_.embedding, out_.tokens);
  if (!architecture_.scaled_embedding) return x;
  return ggml_scale(context_, x, std::sqrt(static_cast<float>(config_.embedding_size)));
}

GraphBuilder::Qkv GraphBuilder::project(const LayerWeights& w, ggml_tensor* x) {
  const std::int64_t dim = config_.head_dim;
  const std::int64_t heads = config_.num_heads;
  const std::int64_t kv_heads = config_.num_kv_heads;
  const std::int64_t tokens = shape_.num_tokens;
  if (w.qkv != nullptr) {
    ggml_tensor* all = linear(w.qkv, w.qkv_bias, x);
    const std::size_t head_bytes = static_cast<std::size_t>(dim) * sizeof(float);
    const auto slice = [&](std::int64_t first, std::int64_t count) {
      return ggml_view_3d(context_, all, dim, count, tokens, head_bytes, all->nb[1],
                          static_cast<std::size_t>(first) * head_bytes);
    };
    return {slice(0, heads), slice(heads, kv_heads), slice(heads + kv_heads, kv_heads)};
  }
  const auto part = [&](ggml_tensor* weight, ggml_tensor* bias, std::int64_t count) {
    return ggml_reshape_3d(context_, linear(weight, bias, x), dim, count, tokens);
  };
  return {part(w.q, w.q_bias, heads), part(w.k, w.k_bias, kv_heads), part(w.v, w.v_bias, kv_heads)};
}

ggml_tensor* GraphBuilder::ffn(const LayerWeights& w, ggml_tensor* x) {
  if (architecture_.ffn == FfnKind::kExperts) return experts(w, x);
  ggml_tensor* up = linear(w.ffn_up, w.ffn_up_bias, x);
  ggml_tensor* active = nullptr;
  switch (architecture_.ffn) {
    case FfnKind::kSwiGlu:
      active = ggml_swiglu_split(context_, linear(w.ffn_gate, w.ffn_gate_bias, x), up);
      break;
    case FfnKind::kGeGlu:
      active = ggml_geglu_split(context_, linear(w.ffn_gate, w.ffn_gate_bias, x), up);
      break;
    case FfnKind::kFusedSwiGlu: active = ggml_swiglu(context_, up); break;
    case FfnKind::kExperts: break;
  }
  return linear(w.ffn_down, w.ffn_down_bias, active);
}

ggml_tensor* GraphBuilder::experts(const LayerWeights& w, ggml_tensor* x) {
  const std::int64_t n = config_.embedding_size;
  const std::int64_t used = config_.num_experts_used;
  const std::int64_t tokens = x->ne[1];
  ggml_tensor* probabilities = ggml_soft_max(context_, linear(w.router, nullptr, x));
  ggml_tensor* chosen = ggml_argsort_top_k(context_, probabilities, static_cast<int>(used));
  probabilities = ggml_reshape_3d(context_, probabilities, 1, config_.num_experts, tokens);

  // The chosen experts' shares, made to add up to 1; the floor is f16's smallest normal.
  ggml_tensor* shares = ggml_get_rows(context_, probabilities, chosen);
  shares = ggml_reshape_2d(context_, shares, used, tokens);
  ggml_tensor* sum =
      ggml_clamp(context_, ggml_sum_rows(context_, shares), 6.103515625e-5F, INFINITY);
  shares = ggml_reshape_3d(context_, ggml_div(context_, shares, sum), 1, used, tokens);
  ggml_build_forward_expand(out_.graph, shares);

  ggml_tensor* rows = ggml_reshape_3d(context_, x, n, 1, tokens);
  ggml_tensor* up = ggml_mul_mat_id(context_, w.up_experts, rows, chosen);
  ggml_tensor* gate = ggml_mul_mat_id(context_, w.gate_experts, rows, chosen);
  ggml_tensor* active = ggml_swiglu_split(context_, gate, up);
  ggml_tensor* down = ggml_mul_mat_id(context_, w.down_experts, active, chosen);
  down = ggml_mul(context_, down, shares);

  const auto slice = [&](std::int64_t i) {
    return ggml_view_2d(context_, down, n, tokens, down->nb[2],
                        static_cast<std::size_t>(i) * down->nb[1]);
  };
  if (used == 1) return ggml_cont(context_, slice(0));
  ggml_tensor* total = slice(0);
  for (std::int64_t i = 1; i < used; ++i) total = ggml_add(context_, total, slice(i));
  return total;
}

ggml_tensor* GraphBuilder::layer(std::size_t index, ggml_tensor* x) {
  const LayerWeights& w = weights_.layers[index];
  const LayerConfig& settings = config_.layers[index];
  const bool last = index + 1 == weights_.layers.size();

  Qkv qkv = project(w, norm(x, w.attn_norm));
  if (w.k_norm != nullptr) qkv.k = norm(qkv.k, w.k_norm);
  qkv.k = rotate(qkv.k, settings);
  ggml_tensor* stored = hooks_.attention->store(context_, out_.graph, index, qkv.k, qkv.v);
  if (last && shape_.num_outputs == 0) return nullptr;

  if (w.q_norm != nullptr) qkv.q = norm(qkv.q, w.q_norm);
  qkv.q = rotate(qkv.q, settings);
  ggml_tensor* y = hooks_.attention->attend(context_, index, qkv.q, stored);
  if (last && out_.output_rows != nullptr) {
    y = ggml_get_rows(context_, y, out_.output_rows);
    x = ggml_get_rows(context_, x, out_.output_rows);
  }
  y = linear(w.attn_out, w.attn_out_bias, y);
  if (w.attn_post_norm != nullptr) y = norm(y, w.attn_post_norm);
  x = ggml_add(context_, y, x);

  y = ffn(w, norm(x, w.ffn_norm));
  if (w.ffn_post_norm != nullptr) y = norm(y, w.ffn_post_norm);
  return ggml_add(context_, y, x);
}

void GraphBuilder::finish(ggml_tensor* x) {
  ggml_tensor* logits =
      linear(weights_.output, weights_.output_bias, norm(x, weights_.output_norm));
  if (const float cap = config_.final_softcap; cap > 0.0F) {
    logits = ggml_scale(context_, logits, 1.0F / cap);
    logits = ggml_scale(context_, ggml_tanh(context_, logits), cap);
  }
  ggml_tensor* args[] = {logits};
  ggml_tensor* sampled = ggml_custom_4d(context_, GGML_TYPE_F32, 1, 1, 1, 1, args, 1, hooks_.sample,
                                        GGML_N_TASKS_MAX, hooks_.sample_userdata);
  ggml_set_output(sampled);
  ggml_build_forward_expand(out_.graph, sampled);
}

StepGraph GraphBuilder::build() {
  out_.tokens = input(shape_.num_tokens, "tokens");
  out_.positions = input(shape_.num_tokens, "positions");
  // Rows with outputs are given in order, so all of them need no gathering.
  if (shape_.num_outputs > 0 && shape_.num_outputs < shape_.num_tokens) {
    out_.output_rows = input(shape_.num_outputs, "output_rows");
  }
  hooks_.attention->begin(context_, shape_);
  ggml_tensor* x = embed();
  for (std::size_t i = 0; i < weights_.layers.size(); ++i) x = layer(i, x);
  if (x != nullptr) finish(x);
  return std::move(out_);
}

}  // namespace

StepGraph build_step_graph(const ModelConfig& config, const ModelTensors& weights, GraphShape shape,
                           bool long_context, const GraphHooks& hooks) {
  CHECK_GT(shape.num_tokens, 0);
  CHECK_LE(shape.num_outputs, shape.num_tokens);
  CHECK(hooks.attention != nullptr);
  return GraphBuilder(config, weights, shape, long_context, hooks).build();
}

}  // namespace sluice
