// For every architecture and variant: a tiny model of random weights gives the
// same logits here as in libllama, however the tokens are cut into steps.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "reference.h"
#include "runner_harness.h"
#include "tiny_model.h"

namespace sluice::testing {
namespace {

// The largest difference of a logit, in standard deviations of the row. libllama
// rounds queries and attention weights to f16, we do not; quantised products
// differ further where activations fall into another quantum.
constexpr double kExactTolerance = 0.01;
constexpr double kBf16Tolerance = 0.05;
constexpr double kQuantisedTolerance = 0.15;
// ggml rounds the columns that meet these in groups of 256 numbers, we in groups of 32.
constexpr double kSuperBlockTolerance = 0.25;
// Kernels of GPUs round both sides of a product to f16.
constexpr double kDeviceTolerance = 0.05;

struct Case {
  const char* name;
  TinyModel model;
  bool repack = true;
  std::string device = {};  // as HarnessOptions has it

  friend void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }
};

TinyModel gemma3() {
  return {.architecture = "gemma3", .num_layers = 7, .sliding_window = 24};
}
TinyModel phi3() {
  return {.architecture = "phi3", .num_kv_heads = 4, .fused_qkv = true};
}
TinyModel qwen3moe() {
  return {.architecture = "qwen3moe", .ffn = 32, .num_experts = 8, .num_experts_used = 3};
}
TinyModel of_type(ggml_type type) {
  return {.embedding = 256, .head_dim = 64, .ffn = 256, .tied = false, .type = type};
}

template <class Edit>
TinyModel with(TinyModel model, Edit edit) {
  edit(model);
  return model;
}

std::vector<Case> all_cases() {
  using M = TinyModel&;
  return {
      {"llama", {}},
      {"llama_untied", {.tied = false}},
      {"llama_one_kv_head", {.num_kv_heads = 1}},
      {"llama_no_groups", {.num_kv_heads = 4}},
      {"llama_biases", {.tied = false, .qkv_bias = true, .out_bias = true}},
      {"llama_fused_qkv", {.qkv_bias = true, .fused_qkv = true}},
      {"llama_rope_freqs", {.rope_freqs = true}},
      {"llama_rope_linear", {.rope_scaling = "linear", .rope_factor = 4.0F}},
      {"llama_rope_none", {.rope_scaling = "none", .rope_factor = 4.0F}},
      {"llama_rope_yarn", {.original_context = 64, .rope_scaling = "yarn", .rope_factor = 4.0F}},
      {"llama_rope_yarn_factor",
       {.original_context = 64,
        .rope_scaling = "yarn",
        .rope_factor = 8.0F,
        .rope_attention_factor = 0.8F}},
      {"llama_longrope",
       {.original_context = 64,
        .rope_scaling = "longrope",
        .rope_attention_factor = 1.2F,
        .long_rope_factors = true}},
      {"llama_wide_heads", {.head_dim = 40}},
      {"llama_f16", of_type(GGML_TYPE_F16)},
      {"llama_bf16", of_type(GGML_TYPE_BF16)},
      {"llama_q4_0", of_type(GGML_TYPE_Q4_0)},
      {"llama_q4_0_mapped", of_type(GGML_TYPE_Q4_0), false},
      {"llama_q4_1", of_type(GGML_TYPE_Q4_1)},
      {"llama_q8_0", of_type(GGML_TYPE_Q8_0)},
      {"llama_q4_k", of_type(GGML_TYPE_Q4_K)},
      {"llama_q6_k_tied", with(of_type(GGML_TYPE_Q6_K), [](M m) { m.tied = true; })},
      {"qwen2", {.architecture = "qwen2", .qkv_bias = true}},
      {"qwen2_output_bias",
       {.architecture = "qwen2", .tied = false, .qkv_bias = true, .output_bias = true}},
      {"qwen2_yarn",
       {.architecture = "qwen2",
        .original_context = 32,
        .rope_scaling = "yarn",
        .rope_factor = 4.0F,
        .qkv_bias = true}},
      {"qwen3", {.architecture = "qwen3"}},
      {"qwen3_wide_heads", {.architecture = "qwen3", .head_dim = 32, .tied = false}},
      {"qwen3moe", qwen3moe()},
      {"qwen3moe_one_expert", with(qwen3moe(), [](M m) { m.num_experts_used = 1; })},
      // All experts are used: rounding must not be able to choose others.
      {"qwen3moe_q4_0", with(qwen3moe(),
                             [](M m) {
                               m.num_experts_used = m.num_experts;
                               m.type = GGML_TYPE_Q4_0;
                               m.tied = false;
                             })},
      {"gemma3", gemma3()},
      {"gemma3_period", with(gemma3(), [](M m) { m.window_period = 3; })},
      {"gemma3_no_window", with(gemma3(), [](M m) { m.sliding_window = 0; })},
      {"gemma3_linear", with(gemma3(),
                             [](M m) {
                               m.rope_scaling = "linear";
                               m.rope_factor = 8.0F;
                             })},
      {"gemma3_q8_0", with(gemma3(), [](M m) { m.type = GGML_TYPE_Q8_0; })},
      {"phi3", phi3()},
      {"phi3_untied", with(phi3(), [](M m) { m.tied = false; })},
      {"phi3_separate_qkv", with(phi3(), [](M m) { m.fused_qkv = false; })},
      {"phi3_partial_rope", with(phi3(), [](M m) { m.rope_dimensions = 12; })},
      {"phi3_longrope", with(phi3(),
                             [](M m) {
                               m.original_context = 64;
                               m.rope_scaling = "longrope";
                               m.long_rope_factors = true;
                               m.rope_attention_factor = 1.19F;
                             })},
      {"phi3_longrope_short", with(phi3(),
                                   [](M m) {
                                     m.original_context = 512;
                                     m.rope_scaling = "longrope";
                                     m.long_rope_factors = true;
                                   })},
  };
}

// The same, with stock operations: on the CPU, or on the device that SLUICE_TEST_DEVICE names.
std::vector<Case> cases_on_device() {
  const char* told = std::getenv("SLUICE_TEST_DEVICE");
  std::vector<Case> cases = all_cases();
  for (Case& c : cases) c.device = told == nullptr ? "cpu" : told;
  return cases;
}

std::vector<Token> random_tokens(std::size_t count, std::uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_int_distribution<Token> uniform(0, kTinyVocabulary - 1);
  std::vector<Token> tokens(count);
  for (Token& token : tokens) token = uniform(rng);
  return tokens;
}

double deviation(std::span<const float> ours, std::span<const float> theirs) {
  double mean = 0.0;
  double square = 0.0;
  double worst = 0.0;
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    if (!std::isfinite(ours[i])) return INFINITY;
    mean += theirs[i];
    square += double{theirs[i]} * theirs[i];
    worst = std::max(worst, std::abs(double{ours[i]} - theirs[i]));
  }
  const auto n = static_cast<double>(theirs.size());
  return worst / std::sqrt(square / n - mean / n * mean / n);
}

class TinyParity : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    const Case& c = GetParam();
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("sluice_parity_{}{}.gguf", c.name, c.device.empty() ? "" : "_device");
    write_tiny_model(c.model, path_);
    reference_ = Reference::load(path_, c.model.context, c.repack);
    ASSERT_NE(reference_, nullptr) << "libllama does not load the model";
    HarnessOptions options;
    options.repack = c.repack;
    options.device = c.device;
    options.runner.max_context = c.model.context;
    auto harness = RunnerHarness::load(path_, options);
    ASSERT_TRUE(harness.has_value()) << harness.error().message;
    harness_ = std::move(*harness);
    tolerance_ = c.model.type == GGML_TYPE_Q4_K    ? kSuperBlockTolerance
                 : ggml_is_quantized(c.model.type) ? kQuantisedTolerance
                 : c.model.type == GGML_TYPE_BF16  ? kBf16Tolerance
                                                   : kExactTolerance;
    const bool host = c.device.empty() || c.device == "cpu";
    if (!host) tolerance_ = std::max(tolerance_, kDeviceTolerance);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  void expect_same(const HarnessSequence& sequence,
                   const std::vector<std::vector<float>>& reference) {
    const auto last = static_cast<std::size_t>(sequence.computed - 1);
    const double worst = deviation(sequence.sampler.logits(), reference[last]);
    EXPECT_LT(worst, tolerance_) << "after token " << last;
    worst_ = std::max(worst_, worst);
  }

  std::filesystem::path path_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<RunnerHarness> harness_;
  double tolerance_ = 0.0;
  double worst_ = 0.0;
};

TEST_P(TinyParity, ChunkedPrefillThenDecode) {
  HarnessSequence sequence;
  sequence.tokens = random_tokens(150, 11);
  const auto reference = reference_->logits(sequence.tokens);
  HarnessSequence* const batch[] = {&sequence};
  for (const std::int32_t chunk : {1, 2, 15, 33, 64, 7}) {
    harness_->step(std::span(const_cast<HarnessSequence**>(batch), 1), std::span(&chunk, 1));
    expect_same(sequence, reference);
  }
  while (sequence.computed < static_cast<std::int32_t>(sequence.tokens.size())) {
    const std::int32_t one = 1;
    harness_->step(std::span(const_cast<HarnessSequence**>(batch), 1), std::span(&one, 1));
    expect_same(sequence, reference);
  }
  RecordProperty("worst_deviation", fmt::format("{:.5f}", worst_));
}

// Sequences of different lengths, some prefilling while others decode.
TEST_P(TinyParity, MixedBatches) {
  constexpr std::size_t kSequences = 4;
  std::vector<HarnessSequence> sequences(kSequences);
  std::vector<std::vector<std::vector<float>>> references;
  std::vector<HarnessSequence*> batch;
  for (std::size_t i = 0; i < kSequences; ++i) {
    sequences[i].tokens = random_tokens(40 + 31 * i, 100 + i);
    references.push_back(reference_->logits(sequences[i].tokens));
    batch.push_back(&sequences[i]);
  }
  std::mt19937_64 rng(5);
  std::uniform_int_distribution<std::int32_t> chunk(0, 12);
  for (bool left = true; left;) {
    std::vector<std::int32_t> counts;
    for (const HarnessSequence& s : sequences) {
      const auto remaining = static_cast<std::int32_t>(s.tokens.size()) - s.computed;
      counts.push_back(std::min(remaining, std::max(1, chunk(rng) - 4)));
    }
    left = std::any_of(counts.begin(), counts.end(), [](std::int32_t n) { return n > 0; });
    if (!left) break;
    harness_->step(batch, counts);
    for (std::size_t i = 0; i < kSequences; ++i) {
      if (counts[i] > 0) expect_same(sequences[i], references[i]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, TinyParity, ::testing::ValuesIn(all_cases()),
                         [](const auto& test) { return std::string(test.param.name); });
INSTANTIATE_TEST_SUITE_P(Device, TinyParity, ::testing::ValuesIn(cases_on_device()),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace sluice::testing
