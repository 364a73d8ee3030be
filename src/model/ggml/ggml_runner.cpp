#include "model/ggml/ggml_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <exception>

#include "base/check.h"
#include "model/token_scores.h"

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

tl::unexpected<Error> out_of_range(const char* name, std::int32_t value, std::int32_t low,
                                   std::int32_t high) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{} is {}, expected {} to {}", name, value, low, high));
}

Result<SampledToken> draw(Sampler& sampler, std::span<float> logits) {
  try {
    return sampler.sample(logits);
  } catch (const std::exception& e) {
    // ggml's threads are C: nothing may be thrown through them.
    return fail(ErrorCode::kInternal, fmt::format("sampling failed: {}", e.what()));
  }
}

}  // namespace

Result<std::unique_ptr<GgmlRunner>> GgmlRunner::make(const ModelConfig& config,
                                                     const Weights& weights,
                                                     const RunnerOptions& options) {
  constexpr std::int32_t kMaxStep = 1 << 20;
  if (options.num_threads < 1 || options.num_threads > GGML_MAX_N_THREADS) {
    return out_of_range("threads", options.num_threads, 1, GGML_MAX_N_THREADS);
  }
  if (options.max_step_tokens < 1 || options.max_step_tokens > kMaxStep) {
    return out_of_range("tokens of a step", options.max_step_tokens, 1, kMaxStep);
  }
  if (options.max_step_outputs < 1) {
    return out_of_range("outputs of a step", options.max_step_outputs, 1, kMaxStep);
  }
  if (options.max_context < 1) {
    return out_of_range("context", options.max_context, 1, config.trained_context);
  }
  std::unique_ptr<GgmlRunner> runner(new GgmlRunner(config, weights, options));
  TRY_STATUS(runner->reserve());
  return runner;
}

GgmlRunner::GgmlRunner(const ModelConfig& config, const Weights& weights,
                       const RunnerOptions& options)
    : config_(config), weights_(weights), options_(options) {
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
    attention_ops_.push_back({&store_op, &attend_op, &call});
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
  const GraphHooks hooks{attention_ops_, &sample_op, this};
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
    const auto at = [&](BlockId id) {
      return kv_.base + static_cast<std::size_t>(id.value) * layout.block_bytes();
    };
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

GraphShape GgmlRunner::lay_out(const StepInput& input) {
  sequences_.clear();
  output_calls_.clear();
  scored_.clear();
  after_drafts_.clear();
  SampledToken none;
  none.token = -1;
  sampled_.assign(input.rows.size(), none);
  std::int32_t num_tokens = 0;
  std::size_t num_outputs = 0;
  for (std::size_t i = 0; i < input.rows.size(); ++i) {
    const StepRows& rows = input.rows[i];
    const std::int32_t count = rows.num_rows();
    CHECK(!rows.tokens.empty());
    CHECK(rows.drafts.empty() || rows.sampler != nullptr);
    CHECK_GE(rows.position, 0);
    CHECK_LE(rows.position, options_.max_context - count);
    CHECK_LE(kv_.layout.blocks_for(rows.position + count),
             static_cast<std::int32_t>(rows.blocks.size()));
    for (const BlockId block : rows.blocks) {
      CHECK(block.value >= 0 && block.value < kv_.num_blocks);
    }
    for (const auto& part : {rows.tokens, rows.drafts}) {
      for (const Token token : part) CHECK(token >= 0 && token < config_.vocabulary_size);
    }
    sequences_.push_back({rows.blocks.data(), count, num_tokens, rows.position});
    CHECK_LE(rows.targets.size() + (rows.sampler != nullptr ? 1 : 0), rows.tokens.size());
    if (!rows.targets.empty()) {
      scored_.resize(input.rows.size());
      scored_[i].resize(rows.targets.size());
    }
    for (std::size_t t = 0; t < rows.targets.size(); ++t) {
      CHECK(rows.targets[t] >= 0 && rows.targets[t] < config_.vocabulary_size);
      output_calls_.push_back({.row = i,
                               .logits = num_outputs++,
                               .target = t,
                               .token = rows.targets[t],
                               .num_top = rows.num_top});
    }
    if (rows.sampler != nullptr) {
      output_calls_.push_back(
          {.row = i, .logits = num_outputs, .sampler = rows.sampler, .drafts = rows.drafts});
      num_outputs += 1 + rows.drafts.size();
    }
    if (!rows.drafts.empty()) after_drafts_.resize(input.rows.size());
    num_tokens += count;
  }
  CHECK_LE(num_tokens, options_.max_step_tokens);
  CHECK_LE(static_cast<std::int32_t>(num_outputs), options_.max_step_outputs);
  return {num_tokens, static_cast<std::int32_t>(num_outputs)};
}

void GgmlRunner::write_inputs(const StepInput& input, const StepGraph& step) const {
  auto* tokens = static_cast<std::int32_t*>(step.tokens->data);
  auto* positions = static_cast<std::int32_t*>(step.positions->data);
  auto* outputs =
      step.output_rows == nullptr ? nullptr : static_cast<std::int32_t*>(step.output_rows->data);
  std::int32_t row = 0;
  const auto* const outputs_end = outputs == nullptr ? nullptr : outputs + step.output_rows->ne[0];
  for (const StepRows& rows : input.rows) {
    std::int32_t position = rows.position;
    for (const auto& part : {rows.tokens, rows.drafts}) {
      for (const Token token : part) {
        tokens[row] = token;
        positions[row++] = position++;
      }
    }
    if (outputs == nullptr) continue;
    const std::int32_t first = row - rows.num_rows();
    for (std::size_t t = 0; t < rows.targets.size(); ++t) {
      *outputs++ = first + static_cast<std::int32_t>(t);
    }
    if (rows.sampler == nullptr) continue;
    for (std::int32_t at = row - 1 - static_cast<std::int32_t>(rows.drafts.size()); at < row;
         ++at) {
      *outputs++ = at;
    }
  }
  // Rows that the step does not have are computed, and seen by nobody.
  std::fill(tokens + row, tokens + step.tokens->ne[0], 0);
  std::fill(positions + row, positions + step.positions->ne[0], 0);
  while (outputs != outputs_end) *outputs++ = 0;
}

Result<StepOutput> GgmlRunner::run(const StepInput& input) {
  const auto begin = std::chrono::steady_clock::now();
  CHECK(kv_.base != nullptr);
  ++num_steps_;
  copy_blocks(input.copies);
  const GraphShape shape = lay_out(input);
  if (shape.num_tokens > 0) {
    TRY(CachedGraph* const cached, graph_for(shape));
    write_inputs(input, cached->step);
    plan_.build(kv_, config_.num_heads, options_.num_threads, sequences_);
    next_output_.store(0, std::memory_order_relaxed);
    const ggml_status status = ggml_backend_graph_compute(backend_.get(), cached->step.graph);
    if (status != GGML_STATUS_SUCCESS) {
      return fail(ErrorCode::kInternal, fmt::format("ggml: {}", ggml_status_to_string(status)));
    }
  }
  StepOutput output;
  output.sampled = std::move(sampled_);
  output.after_drafts = std::move(after_drafts_);
  output.scored = std::move(scored_);
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
  attend(*call.plan, call.layer, rows_of(*dst->src[0]), out, ith, nth);
}

void GgmlRunner::sample_op(ggml_tensor* dst, int, int, void* userdata) {
  static_cast<GgmlRunner*>(userdata)->read_outputs(*dst->src[0]);
}

// Entered by all threads at once: each takes the next call until none is left.
void GgmlRunner::read_outputs(const ggml_tensor& logits) {
  const auto vocabulary = static_cast<std::size_t>(logits.ne[0]);
  while (true) {
    const std::size_t i = next_output_.fetch_add(1, std::memory_order_relaxed);
    if (i >= output_calls_.size()) return;
    const OutputCall& call = output_calls_[i];
    const auto row = [&](std::size_t after) {
      float* const data = static_cast<float*>(logits.data) + (call.logits + after) * vocabulary;
      return std::span<float>(data, vocabulary);
    };
    if (call.sampler == nullptr) {
      scored_[call.row][call.target] = score_token(row(0), call.token, call.num_top);
      continue;
    }
    sampled_[call.row] = draw(*call.sampler, row(0));
    if (call.drafts.empty()) continue;
    draw_along(call.drafts, sampled_[call.row], after_drafts_[call.row],
               [&](std::size_t drafts) { return draw(*call.sampler, row(drafts)); });
  }
}

}  // namespace sluice
