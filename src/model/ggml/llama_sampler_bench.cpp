// Time of one sample, with the vocabularies of real models. Files as for the tests.
#include <benchmark/benchmark.h>
#include <llama.h>

#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "base/rng.h"
#include "model/ggml/llama_text.h"

namespace sluice {
namespace {

const LlamaText* load(const char* variable, const char* name) {
  const char* folder = std::getenv(variable);
  if (folder == nullptr) return nullptr;
  auto model = load_text_model(std::string(folder) + "/" + name);
  return model ? model->release() : nullptr;
}

const LlamaText* model_of(std::int64_t which) {
  static const LlamaText* small = load("SLUICE_TEST_MODELS", "SmolLM2-135M-Instruct.Q4_1.gguf");
  static const LlamaText* large = load("SLUICE_LLAMA_SOURCE", "models/ggml-vocab-gemma-4.gguf");
  return which == 0 ? small : large;
}

// Rows shaped like a model's: a few tokens stand out of a wide bell.
std::vector<std::vector<float>> rows(std::size_t size) {
  Rng rng(1);
  std::vector<std::vector<float>> result(16, std::vector<float>(size));
  for (auto& row : result) {
    for (float& v : row) {
      v = static_cast<float>((rng.uniform() + rng.uniform() + rng.uniform() - 1.5) * 8);
    }
    for (int i = 0; i < 20; ++i) row[rng.below(size)] += static_cast<float>(10 + 6 * rng.uniform());
  }
  return result;
}

void run(benchmark::State& state, const SamplingParams& params) {
  const LlamaText* model = model_of(state.range(0));
  if (model == nullptr) {
    state.SkipWithError("no such model");
    return;
  }
  const auto size = static_cast<std::size_t>(model->tokenizer().vocabulary_size());
  const auto inputs = rows(size);
  std::vector<float> logits(size);
  auto sampler = model->samplers().make(params, {});
  std::size_t i = 0;
  for (auto _ : state) {
    state.PauseTiming();
    logits = inputs[i++ % inputs.size()];
    if (i % 64 == 0) sampler = model->samplers().make(params, {});
    state.ResumeTiming();
    auto sampled = (*sampler)->sample(logits);
    benchmark::DoNotOptimize(sampled);
  }
  state.counters["vocabulary"] = static_cast<double>(size);
}

void Greedy(benchmark::State& state) {
  SamplingParams params;
  params.temperature = 0.0F;
  run(state, params);
}
void Temperature(benchmark::State& state) {
  run(state, {});
}
void TopP(benchmark::State& state) {
  SamplingParams params;
  params.temperature = 0.8F;
  params.top_p = 0.95F;
  run(state, params);
}
void TopKTopP(benchmark::State& state) {
  SamplingParams params;
  params.temperature = 0.8F;
  params.top_k = 40;
  params.top_p = 0.95F;
  run(state, params);
}
void Typical(benchmark::State& state) {
  SamplingParams params;
  params.typical_p = 0.9F;
  run(state, params);
}
void Logprobs(benchmark::State& state) {
  SamplingParams params;
  params.temperature = 0.0F;
  params.num_logprobs = 5;
  run(state, params);
}
// Random rows: nearly every draw breaks the grammar, so that the mask is needed.
void Grammar(benchmark::State& state) {
  SamplingParams params;
  params.grammar.gbnf =
      "root ::= \"{\" pair (\",\" pair)* \"}\"\n"
      "pair ::= string \":\" (string | number)\n"
      "string ::= \"\\\"\" ([^\"\\\\] | \"\\\\\" [\"\\\\nt])* \"\\\"\"\n"
      "number ::= \"-\"? [0-9]+\n";
  run(state, params);
}

BENCHMARK(Greedy)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(Temperature)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(TopP)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(TopKTopP)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(Typical)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(Logprobs)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(Grammar)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);

// A prompt of the chat template: 0: plain; 1: with a tool; 2: with a schema.
void ChatPromptOf(benchmark::State& state) {
  const LlamaText* model = model_of(0);
  if (model == nullptr) {
    state.SkipWithError("no such model");
    return;
  }
  ChatRequest request;
  request.messages_json =
      R"([{"role":"system","content":"Be brief."},{"role":"user","content":"Hello there!"}])";
  if (state.range(0) == 1) {
    request.tools_json =
        R"([{"type":"function","function":{"name":"f","parameters":{"type":"object",
            "properties":{"x":{"type":"integer"}},"required":["x"]}}}])";
  }
  if (state.range(0) == 2) {
    request.json_schema = R"({"type":"object","properties":{"x":{"type":"integer"}}})";
  }
  for (auto _ : state) {
    auto prompt = model->chat().apply(request);
    benchmark::DoNotOptimize(prompt);
  }
}
BENCHMARK(ChatPromptOf)->Arg(0)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace sluice
