// Our products of packed weights beside ggml_mul_mat's of the same weights, in the
// same graph machinery and threads; ggml in the layout that it takes by itself for
// the type (its own repacked one where there is one). Several matrices, so that
// weights come from memory as in a model. GMAC/s: products a second.
//
//   model_ggml_bench --benchmark_filter=^product/ --benchmark_repetitions=5
//     and --benchmark_enable_random_interleaving=true
#include <benchmark/benchmark.h>

#include <deque>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/ggml/ggml_handles.h"
#include "model/ggml/packed_matrix.h"
#include "model/ggml/packed_ops.h"

namespace sluice {
namespace {

constexpr std::int64_t kMatrices = 24;

struct Product {
  ggml_type type;
  std::int64_t rows;
  std::int64_t size;
  std::int64_t count;
  int threads;
};

std::vector<std::byte> blocks_of(const Product& p) {
  Rng rng(1);
  std::vector<float> values(static_cast<std::size_t>(p.rows * p.size));
  for (float& x : values) x = static_cast<float>(2 * rng.uniform() - 1);
  std::vector<std::byte> blocks(ggml_row_size(p.type, p.size) * static_cast<std::size_t>(p.rows));
  ggml_quantize_chunk(p.type, values.data(), blocks.data(), 0, p.rows, p.size, nullptr);
  return blocks;
}

// ggml's own faster layout for the type, or the plain one.
ggml_backend_buffer_type_t ggml_layout(const Product& p) {
  ggml_backend_dev_t device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
  auto* get =
      reinterpret_cast<ggml_backend_dev_get_extra_bufts_t>(ggml_backend_reg_get_proc_address(
          ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts"));
  const GgmlContext context(ggml_init({4 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
  ggml_context* c = context.get();
  ggml_tensor* w = ggml_new_tensor_2d(c, p.type, p.size, p.rows);
  ggml_tensor* y = ggml_mul_mat(c, w, ggml_new_tensor_2d(c, GGML_TYPE_F32, p.size, p.count));
  for (auto* type = get == nullptr ? nullptr : get(device); type != nullptr && *type != nullptr;
       ++type) {
    const GgmlBuffer empty(ggml_backend_buft_alloc_buffer(*type, 0));
    w->buffer = empty.get();
    if (ggml_backend_dev_supports_op(device, y)) return *type;
  }
  return ggml_backend_cpu_buffer_type();
}

// x through every matrix, each with rounding of its own.
void product(benchmark::State& state, const Product& p, bool ours) {
  if (ours && !PackedMatrix::helps(p.type, p.size)) {
    state.SkipWithError("not on this processor");
    return;
  }
  const std::vector<std::byte> blocks = blocks_of(p);
  const GgmlContext weights(ggml_init({std::size_t{1} << 20, nullptr, /*no_alloc=*/true}));
  const GgmlContext context(ggml_init({std::size_t{1} << 20, nullptr, /*no_alloc=*/true}));
  ggml_context* c = context.get();
  ggml_cgraph* graph = ggml_new_graph(c);
  ggml_tensor* x = ggml_new_tensor_2d(c, GGML_TYPE_F32, p.size, p.count);
  std::deque<PackedMatrix> packed;
  std::vector<ggml_tensor*> matrices;
  for (std::int64_t i = 0; i < kMatrices; ++i) {
    ggml_tensor* y = nullptr;
    if (ours) {
      const PackedMatrix& w = packed.emplace_back(p.type, p.rows, p.size, blocks.data());
      y = multiply_node(c, w, round_columns_node(c, x));
    } else {
      matrices.push_back(ggml_new_tensor_2d(weights.get(), p.type, p.size, p.rows));
      y = ggml_mul_mat(c, matrices.back(), x);
    }
    ggml_build_forward_expand(graph, y);
  }
  const GgmlBackend backend(ggml_backend_cpu_init());
  ggml_backend_cpu_set_n_threads(backend.get(), p.threads);
  GgmlBuffer weight_buffer;
  if (!ours) {
    weight_buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(weights.get(), ggml_layout(p)));
  }
  const GgmlBuffer buffer(ggml_backend_alloc_ctx_tensors(c, backend.get()));
  for (ggml_tensor* w : matrices) ggml_backend_tensor_set(w, blocks.data(), 0, blocks.size());
  ggml_set_zero(x);
  for (auto _ : state) ggml_backend_graph_compute(backend.get(), graph);
  const auto macs = static_cast<double>(p.rows * p.size * p.count * kMatrices);
  state.counters["GMAC/s"] = benchmark::Counter(
      static_cast<double>(state.iterations()) * macs / 1e9, benchmark::Counter::kIsRate);
}

const bool kRegistered = [] {
  for (const ggml_type type : {GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_K, GGML_TYPE_Q8_0}) {
    for (const auto& [rows, size] : {std::pair{1536, 768}, std::pair{4096, 4096}}) {
      for (const std::int64_t count : {1, 4, 16, 64, 512}) {
        for (const bool ours : {true, false}) {
          const Product p{type, rows, size, count, 2};
          const std::string name = std::string("product/") + (ours ? "ours" : "ggml") + "/" +
                                   ggml_type_name(type) + "/" + std::to_string(rows) + "x" +
                                   std::to_string(size) + "/columns:" + std::to_string(count);
          benchmark::RegisterBenchmark(name.c_str(), product, p, ours)
              ->Unit(benchmark::kMillisecond)
              ->UseRealTime();
        }
      }
    }
  }
  return true;
}();

}  // namespace
}  // namespace sluice
