// Real models: greedy tokens equal libllama's over many prompts, one at a time
// and in mixed batches with chunked prefill.
//
// Where a token differs, libllama's own logits judge: rounding may choose either
// of two tokens whose logits nearly tie. From there on the texts are two, so we
// go on from libllama's token. SLUICE_TEST_MODELS names the folder of the files.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "reference.h"
#include "runner_harness.h"

namespace sluice::testing {
namespace {

constexpr std::size_t kNumPrompts = 50;
constexpr std::int32_t kNumTokens = 64;
constexpr std::size_t kConcurrent = 8;
// Logits this close, in standard deviations of their row, are a tie, and so many
// of all tokens may be ties. Products of 4-bit weights round activations to 8
// bits, and a rounding that falls the other way is carried through all layers:
// libllama with flash attention, or with another micro-batch, moves logits by up
// to 0.6 deviations and chooses otherwise at 2 to 7 % of positions.
constexpr double kTie = 0.25;
constexpr double kTieShare = 0.05;

const char* const kOpenings[] = {
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at",
    "The three most important things to know about gravity are",
    "In 1969, the first",
    "Question: What is the largest planet?\nAnswer:",
    "To bake a loaf of bread you need",
    "She opened the letter and read:",
    "The quick brown fox jumps over the lazy dog. The dog",
};
const char* const kContexts[] = {
    "",
    "Answer in one sentence. ",
    "The following text was written by a student of history in the spring of last year. ",
    "List: one, two, three, four, five, six, seven, eight, nine, ten. Here is some more text that "
    "makes the prompt longer, so that it takes several chunks and several blocks to compute. ",
    "Dear reader, it is said that every story has two sides, and that the truth lies somewhere in "
    "between. This one has three. The first was told by the miller, the second by his daughter, "
    "and "
    "the third by the river, which had seen everything and forgot nothing. What follows is what "
    "could be put together from all of them, many years later, by somebody who knew none. ",
};

std::vector<std::string> prompts() {
  std::vector<std::string> all;
  for (const char* context : kContexts) {
    for (const char* opening : kOpenings) all.push_back(std::string(context) + opening);
  }
  return all;
}

// What libllama does with each prompt.
struct Expected {
  std::vector<Token> prompt;
  std::vector<Reference::Step> steps;
};

double standard_deviation(std::span<const float> values) {
  double sum = 0.0;
  double squares = 0.0;
  for (const float v : values) {
    sum += v;
    squares += double{v} * v;
  }
  const auto n = static_cast<double>(values.size());
  return std::sqrt(squares / n - sum / n * sum / n);
}

class ModelParity : public ::testing::TestWithParam<const char*> {
 protected:
  // One model's answers are computed once for all tests of the process.
  struct Loaded {
    std::string path;
    std::vector<Expected> expected;
    std::unique_ptr<RunnerHarness> harness;
  };

  void SetUp() override {
    const char* folder = std::getenv("SLUICE_TEST_MODELS");
    if (folder == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODELS is not set";
    const std::string path = std::string(folder) + "/" + GetParam();
    if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
    ASSERT_NO_FATAL_FAILURE(load(path));
  }

  static void load(const std::string& path) {
    if (loaded_.path == path) return;
    loaded_ = {};
    const auto reference = Reference::load(path, 512);
    ASSERT_NE(reference, nullptr);
    for (const std::string& prompt : prompts()) {
      Expected e;
      e.prompt = reference->tokenize(prompt);
      e.steps = reference->continue_greedily(e.prompt, kNumTokens);
      loaded_.expected.push_back(std::move(e));
    }
    HarnessOptions options;
    options.num_blocks = 512;
    auto harness = RunnerHarness::load(path, options);
    ASSERT_TRUE(harness.has_value()) << harness.error().message;
    loaded_.harness = std::move(*harness);
    loaded_.path = path;
  }

  // Judges what was sampled after sequence.tokens and appends libllama's token.
  void judge(HarnessSequence& sequence, const Expected& expected) {
    const std::size_t i = sequence.tokens.size() - expected.prompt.size();
    const Reference::Step& step = expected.steps[i];
    const Token ours = best_token(sequence.sampler.logits());
    ++num_chosen_;
    if (ours != step.token) {
      ++num_ties_;
      const double gap = (double{step.logits[static_cast<std::size_t>(step.token)]} -
                          step.logits[static_cast<std::size_t>(ours)]) /
                         standard_deviation(step.logits);
      EXPECT_LT(gap, kTie) << "token " << i << ": " << ours << " instead of " << step.token;
    }
    sequence.tokens.push_back(step.token);
  }

  [[nodiscard]] static bool finished(const HarnessSequence& sequence, const Expected& expected) {
    return sequence.tokens.size() == expected.prompt.size() + kNumTokens;
  }

  void TearDown() override {
    if (num_chosen_ == 0) return;
    EXPECT_LE(static_cast<double>(num_ties_), kTieShare * static_cast<double>(num_chosen_));
    RecordProperty("tokens", fmt::format("{}", num_chosen_));
    RecordProperty("ties", fmt::format("{}", num_ties_));
    std::printf("%lld tokens, %lld of them ties that fell the other way\n",
                static_cast<long long>(num_chosen_), static_cast<long long>(num_ties_));
  }

  static inline Loaded loaded_;
  std::int64_t num_chosen_ = 0;
  std::int64_t num_ties_ = 0;
};

TEST_P(ModelParity, Alone) {
  ASSERT_EQ(loaded_.expected.size(), kNumPrompts);
  for (const Expected& expected : loaded_.expected) {
    HarnessSequence sequence;
    sequence.tokens = expected.prompt;
    HarnessSequence* batch[] = {&sequence};
    while (!finished(sequence, expected)) {
      const auto count = static_cast<std::int32_t>(sequence.tokens.size()) - sequence.computed;
      loaded_.harness->step(batch, {&count, 1});
      judge(sequence, expected);
    }
    loaded_.harness->release(sequence);
  }
}

// A quantised KV cache keeps within the same limits.
TEST_P(ModelParity, AloneWithQ8Kv) {
  HarnessOptions options;
  options.num_blocks = 512;
  options.kv_type = KvType::kQ8_0;
  if (!KvLayout(loaded_.harness->kv().layout).holds_whole_groups()) GTEST_SKIP();
  const auto harness = RunnerHarness::load(loaded_.path, options);
  ASSERT_TRUE(harness.has_value()) << harness.error().message;
  for (const Expected& expected : loaded_.expected) {
    HarnessSequence sequence;
    sequence.tokens = expected.prompt;
    HarnessSequence* batch[] = {&sequence};
    while (!finished(sequence, expected)) {
      const auto count = static_cast<std::int32_t>(sequence.tokens.size()) - sequence.computed;
      (*harness)->step(batch, {&count, 1});
      judge(sequence, expected);
    }
    (*harness)->release(sequence);
  }
}

// Sequences come and go; prompts are cut into chunks of 16 tokens or fewer that
// share steps with others' decoding.
TEST_P(ModelParity, MixedBatches) {
  std::vector<HarnessSequence> slots(kConcurrent);
  std::vector<const Expected*> work(kConcurrent, nullptr);
  std::vector<HarnessSequence*> batch;
  for (HarnessSequence& slot : slots) batch.push_back(&slot);
  std::size_t next = 0;
  for (bool running = true; running;) {
    running = false;
    std::vector<std::int32_t> counts(kConcurrent, 0);
    for (std::size_t i = 0; i < kConcurrent; ++i) {
      if (work[i] == nullptr && next < loaded_.expected.size()) {
        work[i] = &loaded_.expected[next++];
        slots[i].tokens = work[i]->prompt;
      }
      if (work[i] == nullptr) continue;
      running = true;
      const auto left = static_cast<std::int32_t>(slots[i].tokens.size()) - slots[i].computed;
      counts[i] = std::min(left, static_cast<std::int32_t>(9 + i));
    }
    if (!running) break;
    loaded_.harness->step(batch, counts);
    for (std::size_t i = 0; i < kConcurrent; ++i) {
      if (work[i] == nullptr) continue;
      if (slots[i].computed == static_cast<std::int32_t>(slots[i].tokens.size())) {
        judge(slots[i], *work[i]);
      }
      if (!finished(slots[i], *work[i])) continue;
      loaded_.harness->release(slots[i]);
      work[i] = nullptr;
    }
  }
  EXPECT_EQ(next, kNumPrompts);
}

INSTANTIATE_TEST_SUITE_P(Models, ModelParity,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf",
                                           "gemma-3-270m-q4_k_m.gguf"),
                         [](const auto& test) {
                           return test.index == 0 ? std::string("SmolLM2") : std::string("Gemma3");
                         });

}  // namespace
}  // namespace sluice::testing
