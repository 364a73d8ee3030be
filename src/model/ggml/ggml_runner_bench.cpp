// Steps of a real model: decoding a batch of sequences of a given context, and
// prefilling one prompt. SLUICE_TEST_MODELS names the folder, SLUICE_BENCH_MODEL
// the file in it, SLUICE_BENCH_THREADS the threads.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <memory>
#include <string>

#include "base/check.h"
#include "model/ggml/ggml_runner.h"

namespace sluice {
namespace {

constexpr std::int32_t kPrefill = 512;
constexpr std::int32_t kMaxContext = 4096;

std::string setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

class GreedySampler final : public Sampler {
 public:
  Status resume(std::span<const Token>) override { return {}; }
  Result<SampledToken> sample(std::span<float> logits) override {
    SampledToken best;
    for (std::size_t i = 1; i < logits.size(); ++i) {
      if (logits[i] > logits[static_cast<std::size_t>(best.token)]) {
        best.token = static_cast<Token>(i);
      }
    }
    return best;
  }
};

// A model with a runner and sequences whose KV is whatever the arena holds:
// attention's work does not depend on the values.
struct Setup {
  ModelConfig config;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<GgmlRunner> runner;
  std::unique_ptr<std::byte[]> arena;
  std::vector<std::vector<BlockId>> blocks;
  GreedySampler sampler;
};

std::unique_ptr<Setup> make_setup(std::int64_t num_sequences, std::int32_t context) {
  const std::string path = setting("SLUICE_TEST_MODELS", ".") + "/" +
                           setting("SLUICE_BENCH_MODEL", "SmolLM2-135M-Instruct.Q4_1.gguf");
  auto setup = std::make_unique<Setup>();
  auto file = GgufFile::open(path);
  if (!file) return nullptr;
  setup->config = read_model_config(**file).value();
  setup->weights = load_weights(std::move(*file), setup->config, {}).value();
  RunnerOptions options;
  options.num_threads = std::stoi(setting("SLUICE_BENCH_THREADS", "2"));
  options.max_step_tokens = kPrefill;
  options.max_context = kMaxContext;
  setup->runner = GgmlRunner::make(setup->config, *setup->weights, options).value();

  KvView kv;
  kv.layout = setup->config.kv_layout();
  const std::int32_t per_sequence = kv.layout.blocks_for(context);
  kv.num_blocks = per_sequence * static_cast<std::int32_t>(num_sequences);
  setup->arena = std::make_unique<std::byte[]>(
      static_cast<std::size_t>(kv.num_blocks) * kv.layout.block_bytes() + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(setup->arena.get());
  kv.base = setup->arena.get() + (64 - address % 64) % 64;
  setup->runner->bind(kv);
  for (std::int32_t i = 0; i < num_sequences; ++i) {
    auto& own = setup->blocks.emplace_back();
    for (std::int32_t b = 0; b < per_sequence; ++b) own.emplace_back(i * per_sequence + b);
  }
  return setup;
}

void run(Setup& setup, const StepInput& input, benchmark::State& state) {
  const auto output = setup.runner->run(input);
  if (!output) state.SkipWithError(output.error().message.c_str());
}

void decode(benchmark::State& state) {
  const std::int64_t num_sequences = state.range(0);
  const auto context = static_cast<std::int32_t>(state.range(1));
  constexpr std::int32_t kSteps = 64;
  const auto setup = make_setup(num_sequences, context + kSteps);
  if (setup == nullptr) return state.SkipWithError("no model in SLUICE_TEST_MODELS");
  std::vector<Token> tokens(static_cast<std::size_t>(num_sequences), 5);
  std::int32_t step = 0;
  for (auto _ : state) {
    StepInput input;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      input.rows.push_back({{&tokens[i], 1}, context + step, setup->blocks[i], &setup->sampler});
    }
    step = (step + 1) % kSteps;
    run(*setup, input, state);
  }
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(num_sequences * state.iterations()), benchmark::Counter::kIsRate);
}

void prefill(benchmark::State& state) {
  const auto setup = make_setup(1, kPrefill);
  if (setup == nullptr) return state.SkipWithError("no model in SLUICE_TEST_MODELS");
  std::vector<Token> tokens(kPrefill);
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<Token>(i * 31 % 4000);
  for (auto _ : state) {
    StepInput input;
    input.rows.push_back({tokens, 0, setup->blocks[0], &setup->sampler});
    run(*setup, input, state);
  }
  state.counters["tokens/s"] = benchmark::Counter(
      static_cast<double>(kPrefill * state.iterations()), benchmark::Counter::kIsRate);
}

BENCHMARK(decode)
    ->ArgNames({"sequences", "context"})
    ->ArgsProduct({{1, 8, 32}, {16, 512, 2048}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(prefill)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sluice
