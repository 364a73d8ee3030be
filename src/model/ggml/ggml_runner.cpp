#include "model/ggml/ggml_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>

#include "base/check.h"
#include "model/ggml/runner_options.h"

namespace sluice {
namespace {

// Graphs kept: decode batches of some tens of sizes beside a few prefill chunks.
constexpr std::size_t kMaxGraphs = 32;
// Where ggml is built without OpenMP (a build that was handed in): how long its
// threads look for work before they sleep, in its own unit of 131,072 rounds.
constexpr std::uint32_t kPolling = 1;

// Rows beyond those of a step that its graph may have.
constexpr std::int32_t padding(std::int32_t rows) {
  return rows / 8;
}

// Whether a graph of `graph` can serve a step of `step`. Outputs of all rows are
// not gathered, and those of no row are not computed.
bool serves(const GraphShape& graph, const GraphShape& step) {
  const auto fits = [](std::int32_t has, std::int32_t needs) {
    return has >= needs && has <= needs + padding(needs);
  };
  const bool all = step.num_tokens == step.num_outputs;
  return fits(graph.num_tokens, step.num_tokens) && fits(graph.num_outputs, step.num_outputs) &&
         (graph.num_tokens == graph.num_outputs) == all;
}

HeadRows rows_of(const ggml_tensor& tensor) {
  return {static_cast<const float*>(tensor.data),
          static_cast<std::ptrdiff_t>(tensor.nb[2] / sizeof(float)),
          static_cast<std::ptrdiff_t>(tensor.nb[1] / sizeof(float))};
}

std::span<std::int32_t> ints_of(ggml_tensor* tensor) {
  if (tensor == nullptr) return {};
  return {static_cast<std::int32_t*>(tensor->data), static_cast<std::size_t>(tensor->ne[0])};
}

std::span<float> floats_of(const ggml_tensor& tensor) {
  return {static_cast<float*>(tensor.data), static_cast<std::size_t>(ggml_nelements(&tensor))};
}

}  // namespace

Result<std::unique_ptr<GgmlRunner>> GgmlRunner::make(const ModelConfig& config,
                                                     const Weights& weights,
                                                     const RunnerOptions& options) {
  TRY_STATUS(check_runner_options(options, config));
  std::unique_ptr<GgmlRunner> runner(new GgmlRunner(config, weights, options));
  TRY_STATUS(runner->reserve());
  return runner;
}

GgmlRunner::GgmlRunner(const ModelConfig& config, const Weights& weights,
                       const RunnerOptions& options)
    : config_(config),
      weights_(weights),
      options_(options),
      batch_(options, config.vocabulary_size) {
  ggml_threadpool_params params = ggml_threadpool_params_default(options.num_threads);
  params.poll = kPolling;
  threads_.reset(ggml_threadpool_new(&params));
  CHECK(threads_ != nullptr);
  backend_.reset(ggml_backend_cpu_init());
  CHECK(backend_ != nullptr);
  ggml_backend_cpu_set_n_threads(backend_.get(), options.num_threads);
  ggml_backend_cpu_set_threadpool(backend_.get(), threads_.get());
  allocator_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));

  graphs_.reserve(kMaxGraphs);
  layer_calls_.resize(config.layers.size());
  for (std::size_t i = 0; i < layer_calls_.size(); ++i) {
    LayerCall& call = layer_calls_[i];
    call.plan = &plan_;
    call.layer.layer = static_cast<std::int32_t>(i);
    call.layer.scale = config.attention_scale;
    call.layer.sliding_window = config.layers[i].sliding_window;
    call.head_dim = config.head_dim;
  }
}

// Sizes the compute buffer for the largest step, so that no later one grows it.
Status GgmlRunner::reserve() {
  const GraphShape largest{options_.max_step_tokens,
                           std::min(options_.max_step_tokens, options_.max_step_outputs)};
  const StepGraph step = build(largest);
  if (!ggml_gallocr_reserve(allocator_.get(), step.graph)) {
    return fail(ErrorCode::kInternal,
                fmt::format("no memory for the compute buffer of {} tokens a step",
                            options_.max_step_tokens));
  }
  return {};
}

std::size_t GgmlRunner::compute_buffer_bytes() const {
  return ggml_gallocr_get_buffer_size(allocator_.get(), 0);
}

void GgmlRunner::bind(const KvView& kv) {
  KvLayout expected = config_.kv_layout();
  expected.block_tokens = kv.layout.block_tokens;
  expected.type = kv.layout.type;
  CHECK(kv.layout == expected);
  CHECK(check_attention_shape(kv.layout, config_.num_heads).has_value());
  CHECK(kv.base != nullptr && kv.num_blocks > 0);
  kv_ = kv;
}

StepGraph GgmlRunner::build(GraphShape shape) {
  ++num_graphs_built_;
  const bool long_context = options_.max_context > config_.rope.original_context;
  const GraphHooks hooks{this, &sample_op, this};
  return build_step_graph(config_, weights_.tensors(), shape, long_context, hooks);
}

// The smallest that serves.
GgmlRunner::CachedGraph* GgmlRunner::cached_for(GraphShape shape) {
  CachedGraph* best = nullptr;
  for (CachedGraph& graph : graphs_) {
    if (serves(graph.shape, shape) && (best == nullptr || graph.shape < best->shape)) best = &graph;
  }
  return best;
}

// A batch of decode rows only shrinks until the next admission: as it is. Mixed
// steps are of any size: up to the next of eight sizes between two powers of two.
GraphShape GgmlRunner::roomy(GraphShape shape) const {
  if (shape.num_tokens == shape.num_outputs) return shape;
  const auto up = [](std::int32_t rows) {
    const auto unit =
        static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(rows))) / 8;
    return unit <= 1 ? rows : (rows + unit - 1) / unit * unit;
  };
  GraphShape large{std::min(up(shape.num_tokens), options_.max_step_tokens),
                   std::min(up(shape.num_outputs), options_.max_step_outputs)};
  return large.num_outputs < large.num_tokens && serves(large, shape) ? large : shape;
}

Result<GgmlRunner::CachedGraph*> GgmlRunner::graph_for(GraphShape shape) {
  if (CachedGraph* const cached = cached_for(shape)) {
    cached->last_used = num_steps_;
    return cached;
  }
  shape = roomy(shape);
  StepGraph step = build(shape);
  // All graphs lie in one buffer: only one runs at a time. If it has to grow,
  // the others' addresses are gone.
  const std::size_t bytes_before = compute_buffer_bytes();
  if (!ggml_gallocr_reserve(allocator_.get(), step.graph) ||
      !ggml_gallocr_alloc_graph(allocator_.get(), step.graph)) {
    graphs_.clear();
    return fail(ErrorCode::kInternal,
                fmt::format("no memory for the compute buffer of {} tokens", shape.num_tokens));
  }
  if (compute_buffer_bytes() != bytes_before) graphs_.clear();

  if (graphs_.size() == kMaxGraphs) {
    const auto oldest =
        std::min_element(graphs_.begin(), graphs_.end(),
                         [](const auto& a, const auto& b) { return a.last_used < b.last_used; });
    *oldest = CachedGraph{shape, std::move(step), num_steps_};
    return &*oldest;
  }
  graphs_.push_back({shape, std::move(step), num_steps_});
  return &graphs_.back();
}

void GgmlRunner::copy_blocks(const std::vector<BlockCopy>& copies) const {
  const KvLayout& layout = kv_.layout;
  for (const BlockCopy& copy : copies) {
    CHECK(copy.from.value >= 0 && copy.from.value < kv_.num_blocks);
    CHECK(copy.to.value >= 0 && copy.to.value < kv_.num_blocks);
    CHECK(copy.num_tokens >= 0 && copy.num_tokens <= layout.block_tokens);
    const auto at = [&](BlockId id) { return kv_.at(id); };
    const std::byte* from = at(copy.from);
    std::byte* to = at(copy.to);
    const auto tokens = static_cast<std::size_t>(copy.num_tokens);
    for (std::int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (std::int32_t head = 0; head < layout.num_kv_heads; ++head) {
        const std::size_t k = layout.k_offset(layer, head);
        const std::size_t v = layout.v_offset(layer, head);
        std::memcpy(to + k, from + k, tokens * layout.k_row_bytes());
        std::memcpy(to + v, from + v, tokens * layout.v_row_bytes());
      }
    }
  }
}

Result<StepOutput> GgmlRunner::run(const StepInput& input) {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(kv_.base != nullptr);
  ++num_steps_;
  copy_blocks(input.copies);
  const GraphShape shape = batch_.lay_out(input, kv_);
  if (shape.num_tokens > 0) {
    TRY(CachedGraph* const cached, graph_for(shape));
    const StepGraph& step = cached->step;
    batch_.write(input, {ints_of(step.tokens), ints_of(step.positions), ints_of(step.output_rows)});
    plan_.build(kv_, config_.num_heads, options_.num_threads, batch_.sequences());
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), step.graph);
    if (status != GGML_STATUS_SUCCESS) {
      return fail(ErrorCode::kInternal, fmt::format("ggml: {}", ggml_status_to_string(status)));
    }
  }
  StepOutput output = batch_.take();
  output.duration = std::chrono::steady_clock::now() - begin;
  return output;
}

void GgmlRunner::store_op(ggml_tensor* dst, int ith, int nth, void* userdata) {
  const auto& call = *static_cast<const LayerCall*>(userdata);
  store_kv(*call.plan, call.layer.layer, rows_of(*dst->src[0]), rows_of(*dst->src[1]), ith, nth);
}

void GgmlRunner::attend_op(ggml_tensor* dst, int ith, int nth, void* userdata) {
  const auto& call = *static_cast<const LayerCall*>(userdata);
  const MutableHeadRows out{static_cast<float*>(dst->data),
                            static_cast<std::ptrdiff_t>(dst->nb[1] / sizeof(float)), call.head_dim};
  if (ith == 0) {  // what lies there may be no number
    const auto rows = static_cast<std::size_t>(call.plan->rows().size());
    const std::size_t row_bytes = dst->nb[1];
    std::memset(static_cast<char*>(dst->data) + rows * row_bytes, 0,
                (static_cast<std::size_t>(dst->ne[1]) - rows) * row_bytes);
  }
  sluice::attend(*call.plan, call.layer, rows_of(*dst->src[0]), out, ith, nth);
}

void GgmlRunner::sample_op(ggml_tensor* dst, int, int, void* userdata) {
  static_cast<GgmlRunner*>(userdata)->batch_.read(floats_of(*dst->src[0]));
}

// The result holds nothing: it orders attend() after store().
ggml_tensor* GgmlRunner::store(ggml_context* context, ggml_cgraph* graph, std::size_t layer,
                               ggml_tensor* k, ggml_tensor* v) {
  ggml_tensor* args[] = {k, v};
  ggml_tensor* stored = ggml_custom_4d(context, GGML_TYPE_F32, 1, 1, 1, 1, args, 2, &store_op,
                                       GGML_N_TASKS_MAX, &layer_calls_[layer]);
  ggml_build_forward_expand(graph, stored);
  return stored;
}

ggml_tensor* GgmlRunner::attend(ggml_context* context, std::size_t layer, ggml_tensor* q,
                                ggml_tensor* stored) {
  ggml_tensor* args[] = {q, stored};
  return ggml_custom_4d(context, GGML_TYPE_F32, q->ne[0] * q->ne[1], q->ne[2], 1, 1, args, 2,
                        &attend_op, GGML_N_TASKS_MAX, &layer_calls_[layer]);
}

}  // namespace sluice
