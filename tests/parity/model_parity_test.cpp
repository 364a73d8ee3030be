// Real models: greedy tokens equal libllama's over many prompts, one at a time
// and in mixed batches with chunked prefill.
//
// We generate, and libllama reads each text in one pass and says at every position
// what it would have chosen there: the same claim as two texts side by side, but
// a difference cannot spread. Where a token differs libllama's own logits judge,
// since rounding may choose either of two tokens whose logits nearly tie.
// SLUICE_TEST_MODELS names the folder of the files, SLUICE_TEST_DEVICE a device in place of the
// CPU. A process that runs all tests of a model loads it once, and has each text judged once. One
// thread a process: two models side by side use two cores better than barriers after every product.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "reference.h"
#include "runner_harness.h"

namespace sluice::testing {
namespace {

constexpr std::size_t kNumPrompts = 50;
constexpr std::size_t kNumTokens = 64;
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

// SLUICE_TEST_PROMPTS: so many of the prompts, where a device is slow.
std::size_t num_prompts() {
  const char* told = std::getenv("SLUICE_TEST_PROMPTS");
  return told == nullptr ? kNumPrompts : std::clamp<std::size_t>(std::stoul(told), 1, kNumPrompts);
}

std::vector<std::string> prompts() {
  std::vector<std::string> all;
  for (const char* context : kContexts) {
    for (const char* opening : kOpenings) all.push_back(std::string(context) + opening);
  }
  const std::size_t wanted = num_prompts();
  std::vector<std::string> some;
  for (std::size_t i = 0; i < wanted; ++i) some.push_back(all[i * all.size() / wanted]);
  return some;
}

class ModelParity : public ::testing::TestWithParam<const char*> {
 protected:
  struct Loaded {
    std::string path;
    std::unique_ptr<Reference> reference;
    std::unique_ptr<RunnerHarness> harness;
    std::vector<std::vector<Token>> prompts;
    std::map<std::vector<Token>, std::vector<Reference::Verdict>> judged;  // by the whole text
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
    loaded_.reference = Reference::load(path, 512);
    ASSERT_NE(loaded_.reference, nullptr);
    for (const std::string& prompt : prompts()) {
      loaded_.prompts.push_back(loaded_.reference->tokenize(prompt));
    }
    HarnessOptions options;
    options.num_blocks = 512;
    if (const char* device = std::getenv("SLUICE_TEST_DEVICE")) options.device = device;
    auto harness = RunnerHarness::load(path, options);
    ASSERT_TRUE(harness.has_value()) << harness.error().message;
    loaded_.harness = std::move(*harness);
    loaded_.path = path;
  }

  // What was generated after `prompt`.
  void judge(const HarnessSequence& sequence, const std::vector<Token>& prompt) {
    auto judged = loaded_.judged.find(sequence.tokens);
    if (judged == loaded_.judged.end()) {
      auto verdicts = loaded_.reference->judge(sequence.tokens, prompt.size());
      judged = loaded_.judged.emplace(sequence.tokens, std::move(verdicts)).first;
    }
    const std::vector<Reference::Verdict>& verdicts = judged->second;
    ASSERT_EQ(verdicts.size(), kNumTokens);
    for (std::size_t i = 0; i < verdicts.size(); ++i) {
      const Token ours = sequence.tokens[prompt.size() + i];
      ++num_chosen_;
      if (ours == verdicts[i].best) continue;
      ++num_ties_;
      widest_tie_ = std::max(widest_tie_, verdicts[i].gap);
      EXPECT_LT(verdicts[i].gap, kTie)
          << "token " << i << ": " << ours << " instead of " << verdicts[i].best;
    }
  }

  // A finished sequence is judged, its memory given back.
  void finish(HarnessSequence& sequence, const std::vector<Token>& prompt) {
    ASSERT_NO_FATAL_FAILURE(judge(sequence, prompt));
    loaded_.harness->release(sequence);
  }

  [[nodiscard]] static bool finished(const HarnessSequence& sequence,
                                     const std::vector<Token>& prompt) {
    return sequence.tokens.size() == prompt.size() + kNumTokens;
  }

  void TearDown() override {
    if (num_chosen_ == 0) return;
    EXPECT_LE(static_cast<double>(num_ties_), kTieShare * static_cast<double>(num_chosen_));
    RecordProperty("tokens", fmt::format("{}", num_chosen_));
    RecordProperty("ties", fmt::format("{}", num_ties_));
    fmt::print("{} tokens, {} of them ties that fell the other way, the widest {:.3f} deviations\n",
               num_chosen_, num_ties_, widest_tie_);
  }

  static inline Loaded loaded_;
  std::int64_t num_chosen_ = 0;
  std::int64_t num_ties_ = 0;
  double widest_tie_ = 0.0;
};

TEST_P(ModelParity, Alone) {
  ASSERT_EQ(loaded_.prompts.size(), num_prompts());
  for (const std::vector<Token>& prompt : loaded_.prompts) {
    HarnessSequence sequence;
    sequence.tokens = prompt;
    HarnessSequence* batch[] = {&sequence};
    while (!finished(sequence, prompt)) {
      const auto count = static_cast<std::int32_t>(sequence.tokens.size()) - sequence.computed;
      loaded_.harness->step(batch, {&count, 1});
      sequence.tokens.push_back(best_token(sequence.sampler.logits()));
    }
    ASSERT_NO_FATAL_FAILURE(finish(sequence, prompt));
  }
}

// A quantised KV cache keeps within the same limits.
TEST_P(ModelParity, AloneWithQ8Kv) {
  HarnessOptions options;
  options.num_blocks = 512;
  options.kv_type = KvType::kQ8_0;
  if (!KvLayout(loaded_.harness->kv().layout).holds_whole_groups()) GTEST_SKIP();
  if (std::getenv("SLUICE_TEST_DEVICE") != nullptr) GTEST_SKIP() << "devices have f16 alone";
  const auto harness = RunnerHarness::load(loaded_.path, options);
  ASSERT_TRUE(harness.has_value()) << harness.error().message;
  for (const std::vector<Token>& prompt : loaded_.prompts) {
    HarnessSequence sequence;
    sequence.tokens = prompt;
    HarnessSequence* batch[] = {&sequence};
    while (!finished(sequence, prompt)) {
      const auto count = static_cast<std::int32_t>(sequence.tokens.size()) - sequence.computed;
      (*harness)->step(batch, {&count, 1});
      sequence.tokens.push_back(best_token(sequence.sampler.logits()));
    }
    ASSERT_NO_FATAL_FAILURE(judge(sequence, prompt));
    (*harness)->release(sequence);
  }
}

// Sequences come and go; prompts are cut into chunks of 16 tokens or fewer that
// share steps with others' decoding.
TEST_P(ModelParity, MixedBatches) {
  std::vector<HarnessSequence> slots(kConcurrent);
  std::vector<const std::vector<Token>*> work(kConcurrent, nullptr);
  std::vector<HarnessSequence*> batch;
  for (HarnessSequence& slot : slots) batch.push_back(&slot);
  std::size_t next = 0;
  for (bool running = true; running;) {
    running = false;
    std::vector<std::int32_t> counts(kConcurrent, 0);
    for (std::size_t i = 0; i < kConcurrent; ++i) {
      if (work[i] == nullptr && next < loaded_.prompts.size()) {
        work[i] = &loaded_.prompts[next++];
        slots[i].tokens = *work[i];
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
        slots[i].tokens.push_back(best_token(slots[i].sampler.logits()));
      }
      if (!finished(slots[i], *work[i])) continue;
      ASSERT_NO_FATAL_FAILURE(finish(slots[i], *work[i]));
      work[i] = nullptr;
    }
  }
  EXPECT_EQ(next, num_prompts());
}

INSTANTIATE_TEST_SUITE_P(Models, ModelParity,
                         ::testing::Values("SmolLM2-135M-Instruct.Q4_1.gguf",
                                           "gemma-3-270m-q4_k_m.gguf"),
                         [](const auto& test) {
                           return test.index == 0 ? std::string("SmolLM2") : std::string("Gemma3");
                         });

}  // namespace
}  // namespace sluice::testing
