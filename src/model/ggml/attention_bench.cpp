// Our attention beside ggml_flash_attn_ext on equal data: the same graph
// machinery and threads, several layers so that KV does not stay in the caches,
// one sequence's KV of its own length each (ggml at its best: one stream a
// sequence). GB/s count the K and V that the rows see once, GFLOP/s two products
// of what is visible.
//
//   model_ggml_bench --benchmark_filter='decode/.*' --benchmark_min_time=0.3
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "model/ggml/attention.h"

namespace sluice {
namespace {

struct Shape {
  const char* name;
  std::int32_t heads;
  std::int32_t kv_heads;
  std::int32_t dim;
};
constexpr Shape kSmol{"smol", 9, 3, 64};
constexpr Shape kLlama{"llama8b", 32, 8, 128};

struct Case {
  Shape shape;
  std::int32_t sequences = 1;
  std::int32_t rows = 1;
  std::int32_t position = 0;
  std::int32_t threads = 1;
  std::int32_t block_tokens = 16;
  std::int32_t shared = 0;  // leading tokens that all sequences share
  KvType type = KvType::kF16;

  [[nodiscard]] std::int32_t tokens() const { return position + rows; }
  [[nodiscard]] double layer_bytes() const {
    const auto row = static_cast<double>(kv_row_bytes(type, shape.dim));
    return 2.0 * shape.kv_heads * row * tokens() * sequences;
  }
  [[nodiscard]] std::int32_t layers() const {
    if (rows > 32) return 1;
    return static_cast<std::int32_t>(std::clamp(400e6 / layer_bytes(), 2.0, 30.0));
  }
  [[nodiscard]] double layer_flop() const {
    const double seen = rows * (position + (rows + 1) / 2.0);
    return 4.0 * shape.heads * shape.dim * seen * sequences;
  }
};

// Memory as the arena has it: huge pages, touched.
class Memory {
 public:
  explicit Memory(std::size_t bytes) : bytes_((bytes + kHuge - 1) / kHuge * kHuge) {
    data_ = static_cast<std::byte*>(std::aligned_alloc(kHuge, bytes_));
    madvise(data_, bytes_, MADV_HUGEPAGE);
    // f16 noise between -1 and 1, repeated: its values do not matter.
    Rng rng(1);
    std::vector<ggml_fp16_t> noise(65536);
    for (auto& x : noise) x = ggml_fp32_to_fp16(static_cast<float>(2 * rng.uniform() - 1));
    for (std::size_t at = 0; at < bytes_; at += noise.size() * 2) {
      std::memcpy(data_ + at, noise.data(), std::min(noise.size() * 2, bytes_ - at));
    }
  }
  ~Memory() { std::free(data_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::byte* data() { return data_; }

 private:
  static constexpr std::size_t kHuge = std::size_t{2} << 20;
  std::size_t bytes_;
  std::byte* data_;
};

// A graph of one attention a layer, and what it needs to run.
class Graph {
 public:
  explicit Graph(std::int32_t threads) : threads_(threads) {
    ctx_.reset(ggml_init({std::size_t{4} << 20, nullptr, true}));
    graph_ = ggml_new_graph(ctx_.get());
  }

  ggml_tensor* floats(std::vector<float>& data, std::int64_t a, std::int64_t b, std::int64_t c,
                      std::int64_t d = 1) {
    ggml_tensor* t = ggml_new_tensor_4d(ctx_.get(), GGML_TYPE_F32, a, b, c, d);
    data.resize(static_cast<std::size_t>(ggml_nelements(t)));
    t->data = data.data();
    return t;
  }
  ggml_context* ctx() { return ctx_.get(); }
  void add(ggml_tensor* node, float* out) {
    node->data = out;
    ggml_build_forward_expand(graph_, node);
  }
  void run() {
    ggml_cplan plan = ggml_graph_plan(graph_, threads_, nullptr);
    work_.resize(std::max(work_.size(), plan.work_size));
    plan.work_data = work_.data();
    ggml_graph_compute(graph_, &plan);
  }

 private:
  struct Free {
    void operator()(ggml_context* ctx) const { ggml_free(ctx); }
  };
  std::unique_ptr<ggml_context, Free> ctx_;
  ggml_cgraph* graph_ = nullptr;
  std::int32_t threads_;
  std::vector<std::uint8_t> work_;
};

void fill(std::vector<float>& data) {
  Rng rng(2);
  for (float& x : data) x = static_cast<float>(2 * rng.uniform() - 1);
}

void report(benchmark::State& state, const Case& c) {
  const double runs = static_cast<double>(state.iterations()) * c.layers();
  state.counters["GB/s"] =
      benchmark::Counter(runs * c.layer_bytes() / 1e9, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(runs * c.layer_flop() / 1e9, benchmark::Counter::kIsRate);
}

struct Call {
  AttentionPlan* plan = nullptr;
  AttentionLayer layer;
};

void attend_op(ggml_tensor* dst, int ith, int nth, void* userdata) {
  const auto& call = *static_cast<Call*>(userdata);
  const auto stride = [](const ggml_tensor* t, int i) {
    return static_cast<std::ptrdiff_t>(t->nb[i] / sizeof(float));
  };
  const ggml_tensor* q = dst->src[0];
  attend(*call.plan, call.layer, {static_cast<float*>(q->data), stride(q, 2), stride(q, 1)},
         {static_cast<float*>(dst->data), stride(dst, 2), stride(dst, 1)}, ith, nth);
}

void ours(benchmark::State& state, const Case& c) {
  KvLayout layout;
  layout.num_layers = c.layers();
  layout.num_kv_heads = c.shape.kv_heads;
  layout.head_dim_k = layout.head_dim_v = c.shape.dim;
  layout.block_tokens = c.block_tokens;
  layout.type = c.type;
  const std::int32_t each = layout.blocks_for(c.tokens());
  Memory memory(layout.block_bytes() * static_cast<std::size_t>(each * c.sequences));
  std::vector<BlockId> blocks;
  for (std::int32_t b = 0; b < each * c.sequences; ++b) blocks.emplace_back(b);
  Rng rng(3);
  for (std::size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[rng.below(i)]);
  std::vector<AttentionSequence> batch;
  for (std::int32_t s = 0; s < c.sequences; ++s) {
    std::copy_n(blocks.begin(), c.shared / c.block_tokens, blocks.begin() + s * each);
    batch.push_back({blocks.data() + s * each, c.rows, s * c.rows, c.position});
  }
  AttentionPlan plan;
  Graph graph(c.threads);
  std::vector<float> q_data;
  std::vector<float> out;
  ggml_tensor* q = graph.floats(q_data, c.shape.dim, c.shape.heads, c.rows * c.sequences);
  fill(q_data);
  out.resize(q_data.size());
  std::vector<Call> calls(static_cast<std::size_t>(c.layers()));
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].plan = &plan;
    calls[i].layer.layer = static_cast<std::int32_t>(i);
    calls[i].layer.scale = 1.0F / std::sqrt(static_cast<float>(c.shape.dim));
    graph.add(ggml_custom_4d(graph.ctx(), GGML_TYPE_F32, q->ne[0], q->ne[1], q->ne[2], 1, &q, 1,
                             attend_op, GGML_N_TASKS_MAX, &calls[i]),
              out.data());
  }
  for (auto _ : state) {
    plan.build({memory.data(), layout, each * c.sequences}, c.shape.heads, c.threads, batch);
    graph.run();
  }
  report(state, c);
}

// KV as llama.cpp has it: [token][head][dim], one stream a sequence.
void ggmls(benchmark::State& state, const Case& c) {
  Graph graph(c.threads);
  std::vector<float> q_data;
  std::vector<float> out;
  ggml_tensor* q = graph.floats(q_data, c.shape.dim, c.rows, c.shape.heads, c.sequences);
  fill(q_data);
  out.resize(q_data.size());
  ggml_tensor* mask =
      ggml_new_tensor_4d(graph.ctx(), GGML_TYPE_F16, c.tokens(), c.rows, 1, c.sequences);
  std::vector<ggml_fp16_t> mask_data(static_cast<std::size_t>(ggml_nelements(mask)));
  for (std::size_t i = 0; i < mask_data.size(); ++i) {
    const auto tokens = static_cast<std::size_t>(c.tokens());
    const std::size_t row = i / tokens % static_cast<std::size_t>(c.rows);
    const bool seen = i % tokens <= row + static_cast<std::size_t>(c.position);
    mask_data[i] = ggml_fp32_to_fp16(seen ? 0.0F : -INFINITY);
  }
  mask->data = mask_data.data();
  const auto half = static_cast<std::size_t>(c.layer_bytes() / 2);
  Memory memory(half * 2 * static_cast<std::size_t>(c.layers()));
  const auto rows = [&](std::byte* data) {
    ggml_tensor* t = ggml_new_tensor_4d(graph.ctx(), GGML_TYPE_F16, c.shape.dim, c.tokens(),
                                        c.shape.kv_heads, c.sequences);
    t->nb[2] = static_cast<std::size_t>(c.shape.dim) * 2;
    t->nb[1] = t->nb[2] * static_cast<std::size_t>(c.shape.kv_heads);
    t->nb[3] = t->nb[1] * static_cast<std::size_t>(c.tokens());
    t->data = data;
    return t;
  };
  for (std::int32_t i = 0; i < c.layers(); ++i) {
    std::byte* kv = memory.data() + half * 2 * static_cast<std::size_t>(i);
    graph.add(ggml_flash_attn_ext(graph.ctx(), q, rows(kv), rows(kv + half), mask,
                                  1.0F / std::sqrt(static_cast<float>(c.shape.dim)), 0.0F, 0.0F),
              out.data());
  }
  for (auto _ : state) graph.run();
  report(state, c);
}

void add(const std::string& name, void (*run)(benchmark::State&, const Case&), const Case& c) {
  const std::string full = name + "/" + c.shape.name + "/sequences:" + std::to_string(c.sequences) +
                           "/rows:" + std::to_string(c.rows) +
                           "/depth:" + std::to_string(c.position) +
                           "/threads:" + std::to_string(c.threads);
  benchmark::RegisterBenchmark(full.c_str(), run, c)->UseRealTime()->Unit(benchmark::kMillisecond);
}

bool add_all() {
  for (const Shape& shape : {kSmol, kLlama}) {
    for (const std::int32_t threads : {1, 2}) {
      for (const std::int32_t sequences : {1, 8, 32}) {
        for (const std::int32_t tokens : {128, 512, 1024, 4096}) {
          if (shape.dim * sequences * tokens > 128 * 8 * 4096) continue;  // gigabytes
          Case c{shape, sequences, 1, tokens - 1, threads};
          add("decode/ours", ours, c);
          add("decode_q8/ours", ours,
              {shape, sequences, 1, tokens - 1, threads, 16, 0, KvType::kQ8_0});
          add("decode/ggml", ggmls, c);
        }
      }
      for (const std::int32_t depth : {0, 512, 2048}) {
        add("prefill/ours", ours, {shape, 1, 512, depth, threads});
        add("prefill_q8/ours", ours, {shape, 1, 512, depth, threads, 16, 0, KvType::kQ8_0});
        add("prefill/ggml", ggmls, {shape, 1, 512, depth, threads});
      }
    }
    for (const std::int32_t rows : {2, 4, 8, 16, 32}) {
      add("few/ours", ours, {shape, 8, rows, 1024, 1});
    }
    for (const std::int32_t block_tokens : {8, 16, 32, 64, 128}) {
      Case c{shape, 8, 1, 1023, 1, block_tokens};
      add("block" + std::to_string(block_tokens) + "/ours", ours, c);
    }
    for (const std::int32_t shared : {0, 1024}) {
      Case c{shape, 16, 1, 1151, 1, 16, shared};
      add("shared" + std::to_string(shared) + "/ours", ours, c);
    }
  }
  return true;
}

[[maybe_unused]] const bool kAdded = add_all();

}  // namespace
}  // namespace sluice
