#include "model/ggml/weights.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <deque>
#include <set>
#include <string>

#include "base/check.h"
#include "model/ggml/ggml_handles.h"

namespace sluice {
namespace {

// What the graph does with a weight: decides its type and where it may lie.
enum class Use : std::uint8_t { kVector, kMatrix, kExperts, kRows };
enum class Need : std::uint8_t { kRequired, kOptional };

using Shape = std::array<std::int64_t, GGML_MAX_DIMS>;

Shape shape_of(std::int64_t a, std::int64_t b = 1, std::int64_t c = 1) {
  return {a, b, c, 1};
}

bool can_multiply(ggml_type type) {
  if (type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) return true;
  return ggml_is_quantized(type) && ggml_get_type_traits_cpu(type)->vec_dot != nullptr &&
         ggml_get_type_traits(type)->to_float != nullptr;
}

std::vector<ggml_backend_buffer_type_t> faster_buffer_types(ggml_backend_dev_t device) {
  std::vector<ggml_backend_buffer_type_t> types;
  auto* registry = ggml_backend_dev_backend_reg(device);
  auto* get = reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(
      ggml_backend_reg_get_proc_address(registry, "ggml_backend_dev_get_extra_bufts"));
  if (get == nullptr) return types;
  for (auto* type = get(device); type != nullptr && *type != nullptr; ++type)
    types.push_back(*type);
  return types;
}

// Whether the product that `use` stands for runs with the weight in `type`.
bool supports(ggml_backend_dev_t device, ggml_backend_buffer_type_t type, const GgufTensor& weight,
              Use use) {
  const GgmlContext context(ggml_init({8 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  ggml_context* c = context.get();
  ggml_tensor* w = ggml_new_tensor(c, weight.type, GGML_MAX_DIMS, weight.shape.data());
  constexpr std::int64_t kRows = 512;
  ggml_tensor* product = nullptr;
  if (use == Use::kExperts) {
    ggml_tensor* x = ggml_new_tensor_3d(c, GGML_TYPE_F32, weight.shape[0], 1, kRows);
    ggml_tensor* ids = ggml_new_tensor_2d(c, GGML_TYPE_I32, 1, kRows);
    product = ggml_mul_mat_id(c, w, x, ids);
  } else {
    product = ggml_mul_mat(c, w, ggml_new_tensor_2d(c, GGML_TYPE_F32, weight.shape[0], kRows));
  }
  // The answer depends on where the weight lies, so it is told: nowhere, in 0 bytes.
  const GgmlBuffer empty(ggml_backend_buft_alloc_buffer(type, 0));
  w->buffer = empty.get();
  return ggml_backend_dev_supports_op(device, product);
}

class LoadedWeights final : public Weights {
 public:
  LoadedWeights(std::unique_ptr<GgufFile> file, const WeightOptions& options);

  [[nodiscard]] Status declare(const ModelConfig& config);
  [[nodiscard]] Status load();

  [[nodiscard]] const ModelTensors& tensors() const override { return tensors_; }
  [[nodiscard]] const GgufFile& file() const override { return *file_; }
  [[nodiscard]] std::size_t copied_bytes() const override { return copied_bytes_; }

 private:
  struct Placed {
    const GgufTensor* source = nullptr;
    ggml_tensor* tensor = nullptr;
    ggml_backend_buffer_type_t type = nullptr;  // null: stays in the mapping, or
    bool packed = false;                        // lies in our own layout
  };

  [[nodiscard]] tl::unexpected<Error> bad(const std::string& what) const {
    return fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file_->path(), what));
  }
  // Takes a tensor of the file as a weight; sets `out` to null where an optional
  // one is absent.
  [[nodiscard]] Status take(ggml_tensor*& out, const std::string& name, const Shape& shape, Use use,
                            Need need);
  [[nodiscard]] ggml_tensor* place(const GgufTensor& source, Use use);
  [[nodiscard]] Status declare_outer(const ModelConfig& config);
  [[nodiscard]] Status declare_attention(const ModelConfig& config, const std::string& prefix,
                                         LayerWeights& layer);
  [[nodiscard]] Status declare_ffn(const ModelConfig& config, const std::string& prefix,
                                   LayerWeights& layer);
  [[nodiscard]] Status check_all_taken() const;
  [[nodiscard]] Status check_room() const;
  // Copies the tensors that go into `type`, in buffers no larger than it takes.
  [[nodiscard]] Status fill(ggml_backend_buffer_type_t type, std::size_t& done, std::size_t total);
  void report(std::size_t done, std::size_t total) const;
  void forget_pages(const GgufTensor& source) const;

  std::unique_ptr<GgufFile> file_;
  const WeightOptions options_;
  ggml_backend_dev_t device_ = nullptr;
  bool on_device_ = false;  // a device's memory, not the CPU's
  std::vector<ggml_backend_buffer_type_t> faster_types_;
  std::vector<GgmlBuffer> buffers_;
  GgmlContext context_;
  std::vector<Placed> placed_;
  std::deque<PackedMatrix> packed_;  // tensors point at them
  std::set<std::string, std::less<>> taken_;
  std::size_t copied_bytes_ = 0;
  ModelTensors tensors_;
};

LoadedWeights::LoadedWeights(std::unique_ptr<GgufFile> file, const WeightOptions& options)
    : file_(std::move(file)), options_(options) {
  ggml_cpu_init();
  on_device_ = options_.device != nullptr;
  device_ = on_device_ ? options_.device : ggml_backend_reg_dev_get(ggml_backend_cpu_reg(), 0);
  CHECK(device_ != nullptr);
  if (on_device_) {
    faster_types_ = {ggml_backend_dev_buffer_type(device_)};
  } else if (options_.repack) {
    faster_types_ = faster_buffer_types(device_);
  }
  // One more than the file has: tied embeddings are a tensor of their own.
  const std::size_t num_tensors = file_->tensors().size() + 1;
  context_.reset(ggml_init({num_tensors * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  CHECK(context_ != nullptr);
}

ggml_tensor* LoadedWeights::place(const GgufTensor& source, Use use) {
  ggml_tensor* tensor =
      ggml_new_tensor(context_.get(), source.type, GGML_MAX_DIMS, source.shape.data());
  ggml_set_name(tensor, source.name.c_str());
  Placed placed{&source, tensor};
  placed.packed = use == Use::kMatrix && options_.repack && !on_device_ &&
                  PackedMatrix::helps(source.type, source.shape[0]);
  // Rows of the embedding are few bytes a step: looked up where the file is mapped.
  if (use == Use::kVector && on_device_) placed.type = faster_types_.front();
  if ((use == Use::kMatrix || use == Use::kExperts) && !placed.packed) {
    for (auto* type : faster_types_) {
      if (!supports(device_, type, source, use)) continue;
      placed.type = type;
      break;
    }
  }
  placed_.push_back(placed);
  return tensor;
}

Status LoadedWeights::take(ggml_tensor*& out, const std::string& name, const Shape& shape, Use use,
                           Need need) {
  const GgufTensor* source = file_->find_tensor(name);
  if (source == nullptr) {
    if (need == Need::kOptional) return {};
    return bad(fmt::format("tensor {} is missing", name));
  }
  if (source->shape != shape) {
    return bad(fmt::format("tensor {} has shape {}, expected {}", name, shape_text(source->shape),
                           shape_text(shape)));
  }
  const bool fits =
      use == Use::kVector ? source->type == GGML_TYPE_F32 : can_multiply(source->type);
  if (!fits) {
    return bad(fmt::format("tensor {} has type {}, which is not supported there", name,
                           ggml_type_name(source->type)));
  }
  taken_.insert(name);
  out = place(*source, use);
  return {};
}

Status LoadedWeights::declare(const ModelConfig& config) {
  TRY_STATUS(declare_outer(config));
  tensors_.layers.resize(static_cast<std::size_t>(config.num_layers));
  for (std::size_t i = 0; i < tensors_.layers.size(); ++i) {
    const std::string prefix = fmt::format("blk.{}.", i);
    TRY_STATUS(declare_attention(config, prefix, tensors_.layers[i]));
    TRY_STATUS(declare_ffn(config, prefix, tensors_.layers[i]));
  }
  return check_all_taken();
}

Status LoadedWeights::declare_outer(const ModelConfig& config) {
  const Architecture& a = *config.architecture;
  const Shape vocabulary = shape_of(config.embedding_size, config.vocabulary_size);
  TRY_STATUS(
      take(tensors_.embedding, "token_embd.weight", vocabulary, Use::kRows, Need::kRequired));
  TRY_STATUS(take(tensors_.output_norm, "output_norm.weight", shape_of(config.embedding_size),
                  Use::kVector, Need::kRequired));
  TRY_STATUS(take(tensors_.output, "output.weight", vocabulary, Use::kMatrix, Need::kOptional));
  if (tensors_.output == nullptr) {
    tensors_.output = place(*file_->find_tensor("token_embd.weight"), Use::kMatrix);
  }
  if (a.output_bias) {
    TRY_STATUS(take(tensors_.output_bias, "output.bias", shape_of(config.vocabulary_size),
                    Use::kVector, Need::kOptional));
  }
  const Shape factors = shape_of(config.rope.dimensions / 2);
  if (a.rope_freqs && !config.rope_needs_factors) {
    TRY_STATUS(
        take(tensors_.rope_freqs, "rope_freqs.weight", factors, Use::kVector, Need::kOptional));
  }
  if (a.long_rope) {
    const Need need = config.rope_needs_factors ? Need::kRequired : Need::kOptional;
    TRY_STATUS(take(tensors_.rope_long, "rope_factors_long.weight", factors, Use::kVector, need));
    TRY_STATUS(take(tensors_.rope_short, "rope_factors_short.weight", factors, Use::kVector, need));
  }
  return {};
}

Status LoadedWeights::declare_attention(const ModelConfig& config, const std::string& prefix,
                                        LayerWeights& layer) {
  const Architecture& a = *config.architecture;
  const std::int64_t n = config.embedding_size;
  const std::int64_t q = std::int64_t{config.num_heads} * config.head_dim;
  const std::int64_t kv = std::int64_t{config.num_kv_heads} * config.head_dim;
  const auto vector = [&](ggml_tensor*& out, const char* name, std::int64_t size, Need need) {
    return take(out, prefix + name, shape_of(size), Use::kVector, need);
  };
  const auto matrix = [&](ggml_tensor*& out, const char* name, std::int64_t in, std::int64_t rows,
                          Need need) {
    return take(out, prefix + name, shape_of(in, rows), Use::kMatrix, need);
  };
  TRY_STATUS(vector(layer.attn_norm, "attn_norm.weight", n, Need::kRequired));
  TRY_STATUS(matrix(layer.qkv, "attn_qkv.weight", n, q + 2 * kv, Need::kOptional));
  if (layer.qkv == nullptr) {
    TRY_STATUS(matrix(layer.q, "attn_q.weight", n, q, Need::kRequired));
    TRY_STATUS(matrix(layer.k, "attn_k.weight", n, kv, Need::kRequired));
    TRY_STATUS(matrix(layer.v, "attn_v.weight", n, kv, Need::kRequired));
    TRY_STATUS(vector(layer.q_bias, "attn_q.bias", q, Need::kOptional));
    TRY_STATUS(vector(layer.k_bias, "attn_k.bias", kv, Need::kOptional));
    TRY_STATUS(vector(layer.v_bias, "attn_v.bias", kv, Need::kOptional));
  } else {
    TRY_STATUS(vector(layer.qkv_bias, "attn_qkv.bias", q + 2 * kv, Need::kOptional));
  }
  if (a.qk_norm) {
    TRY_STATUS(vector(layer.q_norm, "attn_q_norm.weight", config.head_dim, Need::kRequired));
    TRY_STATUS(vector(layer.k_norm, "attn_k_norm.weight", config.head_dim, Need::kRequired));
  }
  TRY_STATUS(matrix(layer.attn_out, "attn_output.weight", q, n, Need::kRequired));
  if (a.attention_out_bias) {
    TRY_STATUS(vector(layer.attn_out_bias, "attn_output.bias", n, Need::kOptional));
  }
  if (a.post_norms) {
    TRY_STATUS(vector(layer.attn_post_norm, "post_attention_norm.weight", n, Need::kRequired));
  }
  return {};
}

Status LoadedWeights::declare_ffn(const ModelConfig& config, const std::string& prefix,
                                  LayerWeights& layer) {
  const Architecture& a = *config.architecture;
  const std::int64_t n = config.embedding_size;
  const std::int64_t ff = config.ffn_size;
  const auto required = [&](ggml_tensor*& out, const char* name, const Shape& shape, Use use) {
    return take(out, prefix + name, shape, use, Need::kRequired);
  };
  TRY_STATUS(required(layer.ffn_norm, "ffn_norm.weight", shape_of(n), Use::kVector));
  if (a.post_norms) {
    TRY_STATUS(required(layer.ffn_post_norm, "post_ffw_norm.weight", shape_of(n), Use::kVector));
  }
  if (a.ffn == FfnKind::kExperts) {
    const std::int64_t e = config.num_experts;
    TRY_STATUS(required(layer.router, "ffn_gate_inp.weight", shape_of(n, e), Use::kMatrix));
    TRY_STATUS(
        required(layer.gate_experts, "ffn_gate_exps.weight", shape_of(n, ff, e), Use::kExperts));
    TRY_STATUS(required(layer.up_experts, "ffn_up_exps.weight", shape_of(n, ff, e), Use::kExperts));
    return required(layer.down_experts, "ffn_down_exps.weight", shape_of(ff, n, e), Use::kExperts);
  }
  const bool fused = a.ffn == FfnKind::kFusedSwiGlu;
  if (!fused) {
    TRY_STATUS(required(layer.ffn_gate, "ffn_gate.weight", shape_of(n, ff), Use::kMatrix));
  }
  TRY_STATUS(
      required(layer.ffn_up, "ffn_up.weight", shape_of(n, fused ? 2 * ff : ff), Use::kMatrix));
  TRY_STATUS(required(layer.ffn_down, "ffn_down.weight", shape_of(ff, n), Use::kMatrix));
  if (a.ffn_bias) {
    const auto bias = [&](ggml_tensor*& out, const char* name, std::int64_t size) {
      return take(out, prefix + name, shape_of(size), Use::kVector, Need::kOptional);
    };
    TRY_STATUS(bias(layer.ffn_gate_bias, "ffn_gate.bias", ff));
    TRY_STATUS(bias(layer.ffn_up_bias, "ffn_up.bias", ff));
    TRY_STATUS(bias(layer.ffn_down_bias, "ffn_down.bias", n));
  }
  return {};
}

// A weight that we do not use would make the answers wrong in silence.
Status LoadedWeights::check_all_taken() const {
  for (const GgufTensor& tensor : file_->tensors()) {
    const bool obsolete = tensor.name.find("rot_embd") != std::string::npos ||
                          tensor.name.find("rotary_emb.inv_freq") != std::string::npos;
    if (!obsolete && !taken_.contains(tensor.name)) {
      return bad(fmt::format("tensor {} is not one that this architecture has", tensor.name));
    }
  }
  return {};
}

void LoadedWeights::report(std::size_t done, std::size_t total) const {
  if (options_.on_progress) {
    options_.on_progress(total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total));
  }
}

// The file's copy of a repacked weight is not read again: let its pages go.
void LoadedWeights::forget_pages(const GgufTensor& source) const {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto begin =
      (static_cast<std::size_t>(source.data - file_->data()) + page - 1) / page * page;
  const auto end =
      (static_cast<std::size_t>(source.data - file_->data()) + source.bytes) / page * page;
  if (begin >= end) return;
  auto* base = const_cast<std::byte*>(file_->data());
  static_cast<void>(madvise(base + begin, end - begin, MADV_DONTNEED));
}

Status LoadedWeights::check_room() const {
  std::size_t wanted = 0;
  for (const Placed& p : placed_) {
    if (p.type != nullptr) wanted += ggml_backend_buft_get_alloc_size(p.type, p.tensor);
  }
  std::size_t room = 0;
  std::size_t all = 0;
  ggml_backend_dev_memory(device_, &room, &all);
  if (wanted <= room) return {};
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  return fail(ErrorCode::kNeverFits,
              fmt::format("{}: {} MiB of weights do not fit on {}, which has {} of {} MiB free",
                          file_->path(), wanted / kMiB, ggml_backend_dev_name(device_), room / kMiB,
                          all / kMiB));
}

Status LoadedWeights::fill(ggml_backend_buffer_type_t type, std::size_t& done, std::size_t total) {
  const std::size_t alignment = ggml_backend_buft_get_alignment(type);
  const std::size_t most = ggml_backend_buft_get_max_size(type);
  const auto size_of = [&](const Placed& p) {
    return GGML_PAD(ggml_backend_buft_get_alloc_size(type, p.tensor), alignment);
  };
  for (std::size_t begin = 0; begin < placed_.size();) {
    std::size_t bytes = 0;
    std::size_t end = begin;
    for (; end < placed_.size(); ++end) {
      if (placed_[end].type != type) continue;
      if (bytes > 0 && bytes + size_of(placed_[end]) > most - alignment) break;
      bytes += size_of(placed_[end]);
    }
    if (bytes == 0) return {};
    GgmlBuffer buffer(ggml_backend_buft_alloc_buffer(type, bytes + alignment));
    if (buffer == nullptr) {
      return fail(ErrorCode::kInternal, fmt::format("no memory for {} bytes of weights in {}",
                                                    bytes, ggml_backend_buft_name(type)));
    }
    ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_tallocr allocator = ggml_tallocr_new(buffer.get());
    for (; begin < end; ++begin) {
      const Placed& p = placed_[begin];
      if (p.type != type) continue;
      CHECK(ggml_tallocr_alloc(&allocator, p.tensor) == GGML_STATUS_SUCCESS);
      ggml_backend_tensor_set(p.tensor, p.source->data, 0, p.source->bytes);
      if (p.source->name != "token_embd.weight") forget_pages(*p.source);
      report(done += p.source->bytes, total);
    }
    spdlog::debug("weights: {} bytes in {}", bytes, ggml_backend_buft_name(type));
    copied_bytes_ += bytes;
    buffers_.push_back(std::move(buffer));
  }
  return {};
}

Status LoadedWeights::load() {
  std::size_t total = 0;
  std::size_t done = 0;
  for (const Placed& p : placed_) total += p.source->bytes;

  if (on_device_) TRY_STATUS(check_room());
  auto* mapping = const_cast<std::byte*>(file_->data());
  buffers_.emplace_back(ggml_backend_cpu_buffer_from_ptr(mapping, file_->bytes()));
  ggml_backend_buffer_set_usage(buffers_.back().get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
  for (const Placed& p : placed_) {
    if (p.type != nullptr || p.packed) continue;
    auto* address = const_cast<std::byte*>(p.source->data);
    if (ggml_backend_tensor_alloc(buffers_.front().get(), p.tensor, address) !=
        GGML_STATUS_SUCCESS) {
      return bad(fmt::format("tensor {} cannot be mapped", p.source->name));
    }
    done += p.source->bytes;
  }
  report(done, total);

  for (const Placed& p : placed_) {
    if (!p.packed) continue;
    p.tensor->extra = &packed_.emplace_back(p.source->type, p.source->shape[1], p.source->shape[0],
                                            p.source->data);
    copied_bytes_ += packed_.back().bytes();
    if (p.source->name != "token_embd.weight") forget_pages(*p.source);
    report(done += p.source->bytes, total);
  }

  for (auto* type : faster_types_) TRY_STATUS(fill(type, done, total));
  report(total, total);
  return {};
}

}  // namespace

const PackedMatrix* packed_matrix(const ggml_tensor& weight) {
  // ggml's own layouts use the field as well, but only of tensors in their buffers.
  return weight.buffer == nullptr ? static_cast<const PackedMatrix*>(weight.extra) : nullptr;
}

Result<std::unique_ptr<Weights>> load_weights(std::unique_ptr<GgufFile> file,
                                              const ModelConfig& config,
                                              const WeightOptions& options) {
  auto weights = std::make_unique<LoadedWeights>(std::move(file), options);
  TRY_STATUS(weights->declare(config));
  TRY_STATUS(weights->load());
  return weights;
}

}  // namespace sluice
