#include "model/ggml/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "model/ggml/attention.h"

namespace sluice {
namespace {

// clang-format off
constexpr Architecture kArchitectures[] = {
    {.name = "llama", .rope = RopeStyle::kAdjacentPairs, .ffn = FfnKind::kSwiGlu,
     .rope_freqs = true, .long_rope = true, .attention_out_bias = true, .ffn_bias = true},
    {.name = "qwen2", .rope = RopeStyle::kHalves, .ffn = FfnKind::kSwiGlu, .output_bias = true},
    {.name = "qwen3", .rope = RopeStyle::kHalves, .ffn = FfnKind::kSwiGlu, .qk_norm = true},
    {.name = "qwen3moe", .rope = RopeStyle::kHalves, .ffn = FfnKind::kExperts, .qk_norm = true},
    {.name = "gemma3", .rope = RopeStyle::kHalves, .ffn = FfnKind::kGeGlu, .qk_norm = true,
     .post_norms = true, .scaled_embedding = true, .partial_rope = true, .window_period = 6},
    {.name = "phi3", .rope = RopeStyle::kHalves, .ffn = FfnKind::kFusedSwiGlu,
     .long_rope = true, .partial_rope = true},
};
// clang-format on

constexpr std::int32_t kMaxLayers = 512;
constexpr std::int32_t kMaxHeads = 4096;
constexpr std::int32_t kMaxHeadDim = 1024;
constexpr std::int32_t kMaxEmbedding = 1 << 18;
constexpr std::int32_t kMaxFfn = 1 << 24;
constexpr std::int32_t kMaxVocabulary = 1 << 24;
constexpr std::int32_t kMaxExperts = 1024;
constexpr std::int32_t kMaxExpertsUsed = 64;
constexpr std::int32_t kMaxContext = std::numeric_limits<std::int32_t>::max();
// gemma3 of 27 billion parameters scales attention by its embedding, not its heads.
constexpr std::int32_t kGemma27bLayers = 62;

// Reads keys that begin with the architecture's name.
class Keys {
 public:
  Keys(const GgufFile& file, std::string prefix) : file_(file), prefix_(std::move(prefix)) {}

  [[nodiscard]] tl::unexpected<Error> bad(const std::string& key, const std::string& what) const {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {}.{} {}", file_.path(), prefix_, key, what));
  }

  // An integer in [low, high], also as an array of equal ones.
  [[nodiscard]] Result<std::optional<std::int32_t>> find(const std::string& key, std::int64_t low,
                                                         std::int64_t high) const {
    TRY(const auto values, file_.integers(prefix_ + "." + key));
    if (!values) return std::nullopt;
    if (values->empty()) return bad(key, "is an empty array");
    const std::int64_t value = values->front();
    if (std::any_of(values->begin(), values->end(), [&](std::int64_t v) { return v != value; })) {
      return bad(key, "differs between layers, which is not supported");
    }
    if (value < low || value > high) {
      return bad(key, fmt::format("is {}, expected {} to {}", value, low, high));
    }
    return static_cast<std::int32_t>(value);
  }

  [[nodiscard]] Result<std::int32_t> get(const std::string& key, std::int64_t low,
                                         std::int64_t high) const {
    TRY(const auto value, find(key, low, high));
    if (!value) return bad(key, "is missing");
    return *value;
  }

  [[nodiscard]] Result<std::int32_t> get_or(const std::string& key, std::int32_t otherwise,
                                            std::int64_t low, std::int64_t high) const {
    TRY(const auto value, find(key, low, high));
    return value.value_or(otherwise);
  }

  // A finite number in [low, high].
  [[nodiscard]] Result<std::optional<float>> find_number(const std::string& key, double low,
                                                         double high) const {
    TRY(const auto value, file_.number(prefix_ + "." + key));
    if (!value) return std::nullopt;
    if (!(*value >= low && *value <= high)) {
      return bad(key, fmt::format("is {}, expected {} to {}", *value, low, high));
    }
    return static_cast<float>(*value);
  }

  [[nodiscard]] Result<float> number_or(const std::string& key, float otherwise, double low,
                                        double high) const {
    TRY(const auto value, find_number(key, low, high));
    return value.value_or(otherwise);
  }

  [[nodiscard]] const GgufFile& file() const { return file_; }
  [[nodiscard]] const std::string& prefix() const { return prefix_; }

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

Result<const Architecture*> find_architecture(const GgufFile& file) {
  TRY(const auto name, file.text("general.architecture"));
  if (!name) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: general.architecture is missing", file.path()));
  }
  std::string supported;
  for (const Architecture& architecture : kArchitectures) {
    if (*name == architecture.name) return &architecture;
    supported += supported.empty() ? "" : ", ";
    supported += architecture.name;
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: architecture \"{}\" is not supported; supported are {}", file.path(),
                          *name, supported));
}

Status read_sizes(const Keys& keys, ModelConfig& config) {
  TRY(config.num_layers, keys.get("block_count", 1, kMaxLayers));
  TRY(config.embedding_size, keys.get("embedding_length", 1, kMaxEmbedding));
  TRY(config.trained_context, keys.get("context_length", 1, kMaxContext));
  TRY(config.num_heads, keys.get("attention.head_count", 1, kMaxHeads));
  TRY(config.num_kv_heads,
      keys.get_or("attention.head_count_kv", config.num_heads, 1, config.num_heads));
  if (config.num_heads % config.num_kv_heads != 0) {
    return keys.bad("attention.head_count", fmt::format("is {}, no multiple of {} KV heads",
                                                        config.num_heads, config.num_kv_heads));
  }
  const std::int32_t even_share = config.embedding_size / config.num_heads;
  TRY(config.head_dim, keys.get_or("attention.key_length", even_share, 1, kMaxHeadDim));
  TRY(const std::int32_t value_dim,
      keys.get_or("attention.value_length", even_share, 1, kMaxHeadDim));
  if (value_dim != config.head_dim) {
    return keys.bad("attention.value_length",
                    fmt::format("is {}, but keys have {}: unequal lengths are not supported",
                                value_dim, config.head_dim));
  }
  TRY(const std::int32_t causal, keys.get_or("attention.causal", 1, 0, 1));
  if (causal == 0)
    return keys.bad("attention.causal", "is false: only causal models are supported");
  TRY(config.norm_epsilon, keys.number_or("attention.layer_norm_rms_epsilon", -1.0F, 0.0, 1.0));
  if (config.norm_epsilon < 0.0F) return keys.bad("attention.layer_norm_rms_epsilon", "is missing");
  if (const Status shape = check_attention_shape(config.kv_layout(), config.num_heads); !shape) {
    return keys.bad("attention", shape.error().message);
  }
  return {};
}

Status read_ffn(const Keys& keys, ModelConfig& config) {
  TRY(config.num_experts, keys.get_or("expert_count", 0, 0, kMaxExperts));
  if (config.architecture->ffn != FfnKind::kExperts) {
    TRY(config.ffn_size, keys.get("feed_forward_length", 1, kMaxFfn));
    if (config.num_experts > 0) {
      return keys.bad("expert_count", fmt::format("is {}: mixtures of experts are not supported "
                                                  "in this architecture, only in qwen3moe",
                                                  config.num_experts));
    }
    return {};
  }
  if (config.num_experts == 0) return keys.bad("expert_count", "is missing or 0");
  TRY(config.num_experts_used,
      keys.get("expert_used_count", 1, std::min(config.num_experts, kMaxExpertsUsed)));
  TRY(const auto expert_size, keys.find("expert_feed_forward_length", 1, kMaxFfn));
  if (expert_size) {
    config.ffn_size = *expert_size;
    return {};
  }
  TRY(const std::int32_t total, keys.get("feed_forward_length", 1, kMaxFfn));
  config.ffn_size = total / config.num_experts_used;
  return {};
}

// With YaRN ggml multiplies the rotation's magnitude by 1 + 0.1 ln(factor) itself,
// which is all that these families want: the attention factor stays as given.
Status read_rope(const Keys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  TRY(rope.dimensions, keys.get_or("rope.dimension_count", config.head_dim, 2, config.head_dim));
  if (rope.dimensions % 2 != 0) {
    return keys.bad("rope.dimension_count", fmt::format("is {}, which is odd", rope.dimensions));
  }
  if (!config.architecture->partial_rope && rope.dimensions != config.head_dim) {
    return keys.bad("rope.dimension_count", fmt::format("is {}, expected {} as heads have",
                                                        rope.dimensions, config.head_dim));
  }
  TRY(rope.original_context,
      keys.get_or("rope.scaling.original_context_length", config.trained_context, 0, kMaxContext));
  if (rope.original_context == 0) rope.original_context = config.trained_context;

  LayerConfig layer;
  TRY(layer.rope_base, keys.number_or("rope.freq_base", 10000.0F, 1e-3, 1e12));
  TRY(auto factor, keys.find_number("rope.scaling.factor", 0.0, 1e6));
  if (!factor) {
    TRY(factor, keys.find_number("rope.scale_linear", 0.0, 1e6));
  }
  const float stretch = factor.value_or(0.0F) == 0.0F ? 1.0F : *factor;
  if (stretch < 1e-6F) return keys.bad("rope.scaling.factor", fmt::format("is {}", stretch));
  layer.rope_scale = 1.0F / stretch;
  TRY(rope.attention_factor, keys.number_or("rope.scaling.attn_factor", 1.0F, 1e-6, 1e6));

  TRY(const auto type_key, keys.file().text(keys.prefix() + ".rope.scaling.type"));
  const std::string type = type_key.value_or("linear");
  if (type == "none") {
    layer.rope_scale = 1.0F;
  } else if (type == "yarn") {
    if (stretch < 1.0F)
      return keys.bad("rope.scaling.factor", fmt::format("is {} below 1", stretch));
    rope.extrapolation = 1.0F;
  } else if (type == "longrope") {
    config.rope_needs_factors = true;
  } else if (type != "linear") {
    return keys.bad("rope.scaling.type",
                    fmt::format("is \"{}\"; supported are none, linear, yarn, longrope", type));
  }
  config.layers.assign(static_cast<std::size_t>(config.num_layers), layer);
  return {};
}

Status read_windows(const Keys& keys, ModelConfig& config) {
  const std::int32_t default_period = config.architecture->window_period;
  if (default_period == 0) return {};
  TRY(config.sliding_window, keys.get_or("attention.sliding_window", 0, 0, kMaxContext));
  if (config.sliding_window == 0) return {};

  const std::string pattern_key = keys.prefix() + ".attention.sliding_window_pattern";
  TRY(const auto pattern, keys.file().integers(pattern_key));
  const bool by_layer = keys.file().is_array(pattern_key);
  if (by_layer && pattern->size() != config.layers.size()) {
    return keys.bad(
        "attention.sliding_window_pattern",
        fmt::format("has {} entries for {} layers", pattern->size(), config.layers.size()));
  }
  const std::int64_t period = pattern && !by_layer ? pattern->front() : default_period;
  if (period < 0) return keys.bad("attention.sliding_window_pattern", "is negative");
  TRY(const float window_base, keys.number_or("rope.freq_base_swa", 10000.0F, 1e-3, 1e12));
  for (std::size_t i = 0; i < config.layers.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const bool windowed =
        by_layer ? (*pattern)[i] != 0 : period == 0 || index % period < period - 1;
    if (!windowed) continue;
    config.layers[i] = {config.sliding_window, window_base, 1.0F};
  }
  return {};
}

Status read_vocabulary(const Keys& keys, ModelConfig& config) {
  const GgufFile& file = keys.file();
  const GgufTensor* embedding = file.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: tensor token_embd.weight is missing", file.path()));
  }
  const std::int64_t size = embedding->shape[1];
  if (size < 1 || size > kMaxVocabulary) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: token_embd.weight has {} rows, expected 1 to {}", file.path(),
                            size, kMaxVocabulary));
  }
  const auto num_tokens = file.array_size("tokenizer.ggml.tokens");
  if (num_tokens && *num_tokens != size) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} tokens in the vocabulary, but {} rows in token_embd.weight",
                            file.path(), *num_tokens, size));
  }
  config.vocabulary_size = static_cast<std::int32_t>(size);
  return {};
}

}  // namespace

std::span<const Architecture> supported_architectures() {
  return kArchitectures;
}

KvLayout ModelConfig::kv_layout() const {
  KvLayout layout;
  layout.num_layers = num_layers;
  layout.num_kv_heads = num_kv_heads;
  layout.head_dim_k = head_dim;
  layout.head_dim_v = head_dim;
  return layout;
}

Result<ModelConfig> read_model_config(const GgufFile& file) {
  ModelConfig config;
  TRY(config.architecture, find_architecture(file));
  const Keys keys(file, config.architecture->name);
  TRY_STATUS(read_sizes(keys, config));
  TRY_STATUS(read_ffn(keys, config));
  TRY_STATUS(read_rope(keys, config));
  TRY_STATUS(read_windows(keys, config));
  TRY_STATUS(read_vocabulary(keys, config));
  if (config.architecture->window_period > 0) {
    TRY(config.final_softcap, keys.number_or("final_logit_softcapping", 0.0F, 0.0, 1e6));
  }

  const bool by_embedding =
      config.architecture->scaled_embedding && config.num_layers == kGemma27bLayers;
  const std::int32_t scale_dim =
      by_embedding ? config.embedding_size / config.num_heads : config.head_dim;
  config.attention_scale = 1.0F / std::sqrt(static_cast<float>(scale_dim));
  return config;
}

}  // namespace sluice
