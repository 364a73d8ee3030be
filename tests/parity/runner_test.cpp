// What a runner owes its engine beside right logits: steady graphs, block
// copies, rows without outputs, sampling by row, and models that share weights.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "model/logits.h"
#include "model/model.h"
#include "reference.h"
#include "runner_harness.h"
#include "tiny_model.h"

namespace sluice::testing {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

constexpr float kTolerance = 1e-3F;  // logits of the tiny model are of the order of 1

class FailingSampler final : public Sampler {
 public:
  Status resume(std::span<const Token>) override { return {}; }
  Result<SampledToken> sample(std::span<float>) override {
    return fail(ErrorCode::kInternal, "no token is possible");
  }
};

class ThrowingSampler final : public Sampler {
 public:
  Status resume(std::span<const Token>) override { return {}; }
  Result<SampledToken> sample(std::span<float>) override { throw std::runtime_error("oops"); }
};

class Runner : public ::testing::Test {
 protected:
  void SetUp() override {
    // A test that dies on purpose runs its end in another process, which leaves its file behind:
    // the same one for both.
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = (std::filesystem::temp_directory_path() /
             fmt::format("sluice_runner_{}.gguf", test->name()))
                .string();
    write_tiny_model({.tied = false}, path_);
    harness_ = make({});
    ASSERT_NE(harness_, nullptr);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  [[nodiscard]] std::unique_ptr<RunnerHarness> make(const HarnessOptions& options) const {
    auto harness = RunnerHarness::load(path_, options);
    return harness ? std::move(*harness) : nullptr;
  }
  [[nodiscard]] static std::vector<Token> some_tokens(std::size_t count, Token first = 7) {
    std::vector<Token> tokens(count);
    for (std::size_t i = 0; i < count; ++i) {
      tokens[i] = static_cast<Token>((static_cast<std::size_t>(first) + i * 37) % kTinyVocabulary);
    }
    return tokens;
  }
  // Logits after all of `tokens`, computed in one step.
  [[nodiscard]] static std::vector<float> logits_of(RunnerHarness& harness,
                                                    const std::vector<Token>& tokens) {
    HarnessSequence sequence;
    sequence.tokens = tokens;
    HarnessSequence* batch[] = {&sequence};
    const auto count = static_cast<std::int32_t>(tokens.size());
    harness.step(batch, {&count, 1});
    harness.release(sequence);
    return sequence.sampler.logits();
  }

  std::string path_;
  std::unique_ptr<RunnerHarness> harness_;
};

TEST_F(Runner, SteadyBatchReplaysItsGraph) {
  std::vector<HarnessSequence> sequences(4);
  std::vector<HarnessSequence*> batch;
  for (HarnessSequence& s : sequences) {
    s.tokens = some_tokens(60);
    batch.push_back(&s);
  }
  harness_->step(batch, std::vector<std::int32_t>(4, 10));
  harness_->step(batch, std::vector<std::int32_t>(4, 1));
  const std::int64_t built = harness_->runner().num_graphs_built();
  const std::size_t bytes = harness_->runner().compute_buffer_bytes();
  for (int i = 0; i < 40; ++i) harness_->step(batch, std::vector<std::int32_t>(4, 1));
  EXPECT_EQ(harness_->runner().num_graphs_built(), built);
  EXPECT_EQ(harness_->runner().compute_buffer_bytes(), bytes);
}

// As in a window: sequences end and none is admitted.
TEST_F(Runner, AShrinkingBatchReplaysItsGraph) {
  std::vector<HarnessSequence> sequences(24);
  std::vector<HarnessSequence*> batch;
  for (HarnessSequence& s : sequences) {
    s.tokens = some_tokens(20, static_cast<Token>(batch.size()));
    batch.push_back(&s);
  }
  const std::vector<std::vector<float>> alone = [&] {
    std::vector<std::vector<float>> logits;
    for (const HarnessSequence& s : sequences) {
      logits.push_back(logits_of(*harness_, {s.tokens.begin(), s.tokens.begin() + 8}));
    }
    return logits;
  }();
  harness_->step(batch, std::vector<std::int32_t>(24, 4));
  harness_->step(batch, std::vector<std::int32_t>(24, 1));
  const std::int64_t built = harness_->runner().num_graphs_built();
  for (std::size_t left : {23U, 22U}) {
    batch.resize(left);
    harness_->step(batch, std::vector<std::int32_t>(left, 1));
  }
  batch.resize(22);
  harness_->step(batch, std::vector<std::int32_t>(22, 1));
  EXPECT_EQ(harness_->runner().num_graphs_built(), built);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    EXPECT_THAT(sequences[i].sampler.logits(), Pointwise(FloatNear(kTolerance), alone[i])) << i;
  }
}

// Chunks of about equal size beside decode rows.
TEST_F(Runner, MixedStepsOfAboutEqualSizeShareAGraph) {
  std::vector<HarnessSequence> sequences(9);
  std::vector<HarnessSequence*> batch;
  for (HarnessSequence& s : sequences) {
    s.tokens = some_tokens(400);
    batch.push_back(&s);
  }
  std::vector<std::int32_t> counts(9, 1);
  counts[8] = 0;
  harness_->step(batch, counts);
  const std::int64_t before = harness_->runner().num_graphs_built();
  for (const std::int32_t chunk : {56, 54, 53, 56, 51, 55}) {
    counts[8] = chunk;
    harness_->step(batch, counts);
  }
  EXPECT_LE(harness_->runner().num_graphs_built(), before + 2);
}

// More shapes than graphs are kept, the largest step among them: nothing grows,
// and a graph that comes back is still right.
TEST_F(Runner, ManyShapes) {
  const std::size_t bytes = harness_->runner().compute_buffer_bytes();
  const std::vector<float> first = logits_of(*harness_, some_tokens(20));
  for (std::size_t n = 1; n <= 128; ++n) {
    EXPECT_FALSE(logits_of(*harness_, some_tokens(n)).empty());
  }
  EXPECT_EQ(harness_->runner().compute_buffer_bytes(), bytes);
  EXPECT_EQ(logits_of(*harness_, some_tokens(20)), first);
}

// What a KV cache of half the size costs: logits move by a few percent of their spread.
TEST_F(Runner, LogitsWithQ8KvAreNearThoseWithF16) {
  write_tiny_model({.head_dim = 32, .tied = false}, path_);
  const auto f16 = make({});
  const auto q8 = make({.kv_type = KvType::kQ8_0});
  ASSERT_TRUE(f16 && q8);
  EXPECT_LT(static_cast<double>(q8->kv().layout.block_bytes()),
            0.54 * static_cast<double>(f16->kv().layout.block_bytes()));
  double error = 0;
  double spread = 0;
  for (Token first = 1; first < 6; ++first) {
    const std::vector<float> exact = logits_of(*f16, some_tokens(90, first));
    const std::vector<float> coarse = logits_of(*q8, some_tokens(90, first));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      error += std::pow(static_cast<double>(exact[i] - coarse[i]), 2);
      spread += std::pow(static_cast<double>(exact[i]), 2);
    }
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(std::sqrt(error / spread), 0.03);
}

TEST_F(Runner, ThreadsDoNotMatter) {
  const std::vector<float> expected = logits_of(*harness_, some_tokens(50));
  for (const std::int32_t threads : {2, 3}) {
    HarnessOptions options;
    options.runner.num_threads = threads;
    const auto other = make(options);
    ASSERT_NE(other, nullptr);
    EXPECT_THAT(logits_of(*other, some_tokens(50)), Pointwise(FloatNear(kTolerance), expected));
  }
}

TEST_F(Runner, RowsWithoutASamplerHaveNoToken) {
  const std::vector<Token> tokens = some_tokens(40);
  const std::vector<float> expected = logits_of(*harness_, tokens);
  std::vector<BlockId> blocks = {harness_->take_block(), harness_->take_block(),
                                 harness_->take_block()};
  const std::vector<Token> other = some_tokens(3, 90);
  const std::vector<BlockId> other_blocks = {harness_->take_block()};
  const std::span all(tokens);

  StepInput silent;  // nobody samples
  silent.rows.push_back({all.first(20), 0, blocks, nullptr});
  auto output = harness_->runner().run(silent);
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->sampled.at(0)->token, -1);
  EXPECT_GT(output->duration.count(), 0);

  StepInput mixed;  // the last of three rows samples
  CapturingSampler sampler;
  mixed.rows.push_back({other, 0, other_blocks, nullptr});
  mixed.rows.push_back({all.subspan(20, 20), 20, blocks, &sampler});
  output = harness_->runner().run(mixed);
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->sampled.at(0)->token, -1);
  EXPECT_EQ(output->sampled.at(1)->token, best_token(expected));
  EXPECT_THAT(sampler.logits(), Pointwise(FloatNear(kTolerance), expected));
}

TEST_F(Runner, AStepMayBeEmpty) {
  const auto output = harness_->runner().run({});
  ASSERT_TRUE(output.has_value());
  EXPECT_TRUE(output->sampled.empty());
}

// Sixteen tokens are shared, four more are copied out of a block that goes on
// differently.
TEST_F(Runner, CopiesPartsOfBlocks) {
  std::vector<Token> first = some_tokens(30);
  std::vector<Token> second(first.begin(), first.begin() + 20);
  for (const Token token : some_tokens(9, 201)) second.push_back(token);
  const std::vector<float> expected = logits_of(*harness_, second);

  const std::vector<BlockId> own = {harness_->take_block(), harness_->take_block()};
  const std::vector<BlockId> mine = {own[0], harness_->take_block()};
  StepInput prefill;
  prefill.rows.push_back({first, 0, own, nullptr});
  ASSERT_TRUE(harness_->runner().run(prefill).has_value());

  StepInput rest;
  CapturingSampler sampler;
  rest.copies.push_back({own[1], mine[1], 4});
  rest.rows.push_back({std::span(second).subspan(20), 20, mine, &sampler});
  ASSERT_TRUE(harness_->runner().run(rest).has_value());
  EXPECT_THAT(sampler.logits(), Pointwise(FloatNear(kTolerance), expected));
}

TEST_F(Runner, AFailedSamplerEndsItsOwnSequenceOnly) {
  const std::vector<Token> tokens = some_tokens(5);
  FailingSampler failing;
  ThrowingSampler throwing;
  CapturingSampler good;
  Sampler* samplers[] = {&failing, &good, &throwing};
  std::vector<std::vector<BlockId>> blocks;
  StepInput input;
  for (Sampler* sampler : samplers) {
    blocks.push_back({harness_->take_block()});
    input.rows.push_back({tokens, 0, {}, sampler});
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) input.rows[i].blocks = blocks[i];
  const auto output = harness_->runner().run(input);
  ASSERT_TRUE(output.has_value());
  ASSERT_EQ(output->sampled.size(), 3U);
  EXPECT_THAT(output->sampled[0].error().message, HasSubstr("no token is possible"));
  EXPECT_EQ(output->sampled[1]->token, best_token(good.logits()));
  EXPECT_THAT(output->sampled[2].error().message, HasSubstr("oops"));
}

// In one step and in chunks, beside rows that draw and rows that do neither.
TEST_F(Runner, ScoresTokensByWhatPrecedesThem) {
  const std::vector<Token> tokens = some_tokens(21);
  std::vector<float> expected;
  for (std::size_t i = 1; i < tokens.size(); ++i) {
    const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(i);
    const std::vector<float> logits = logits_of(*harness_, {tokens.begin(), end});
    expected.push_back(logits[static_cast<std::size_t>(tokens[i])] - log_sum_exp(logits));
  }
  for (const std::size_t chunk : {1U, 4U, 21U}) {
    const std::vector<BlockId> blocks = {harness_->take_block(), harness_->take_block()};
    const std::vector<BlockId> other = {harness_->take_block()};
    std::vector<float> scores;
    for (std::size_t at = 0; at < tokens.size(); at += chunk) {
      const std::size_t count = std::min(chunk, tokens.size() - at);
      CapturingSampler sampler;
      StepInput input;
      input.rows.push_back({std::span(tokens).first(5), 0, other, nullptr});
      input.rows.push_back({.tokens = std::span(tokens).subspan(at, count),
                            .position = static_cast<std::int32_t>(at),
                            .blocks = blocks,
                            .sampler = at + count == tokens.size() ? &sampler : nullptr,
                            .targets = std::span(tokens).subspan(at + 1).first(
                                std::min(count, tokens.size() - at - 1)),
                            .num_top = 2});
      const auto output = harness_->runner().run(input);
      ASSERT_TRUE(output.has_value());
      if (input.rows[1].targets.empty()) {
        EXPECT_TRUE(output->scored.empty());
        continue;
      }
      ASSERT_EQ(output->scored.size(), 2U);
      EXPECT_TRUE(output->scored[0].empty());
      for (const ScoredToken& scored : output->scored[1]) {
        EXPECT_EQ(scored.token, tokens[scores.size() + 1]);
        EXPECT_EQ(scored.top.size(), 2U);
        EXPECT_EQ(scored.rank == 1, scored.top[0].token == scored.token);
        scores.push_back(scored.logprob);
      }
    }
    EXPECT_THAT(scores, Pointwise(FloatNear(kTolerance), expected)) << chunk;
  }
}

// What is drawn along guesses is what is drawn a token a step, whether they are right or
// wrong, and what was written for a wrong one disturbs nothing that comes after.
TEST_F(Runner, GuessesChangeNothingThatIsDrawn) {
  constexpr std::size_t kPrompt = 10;
  const auto step = [&](HarnessSequence& s, std::span<const Token> drafts) {
    StepInput input;
    StepRows rows;
    rows.tokens = std::span(s.tokens).subspan(static_cast<std::size_t>(s.computed));
    rows.position = s.computed;
    rows.blocks = s.blocks;
    rows.sampler = &s.sampler;
    rows.drafts = drafts;
    input.rows.push_back(rows);
    const Result<StepOutput> output = harness_->runner().run(input);
    EXPECT_TRUE(output.has_value());
    s.computed = static_cast<std::int32_t>(s.tokens.size());
    s.tokens.push_back(output->sampled[0]->token);
    if (output->after_drafts.empty()) return;
    for (const auto& drawn : output->after_drafts[0]) {
      s.computed += 1;
      s.tokens.push_back(drawn->token);
    }
  };
  const auto sequence = [&] {
    HarnessSequence s;
    s.tokens = some_tokens(kPrompt);
    for (int i = 0; i < 8; ++i) s.blocks.push_back(harness_->take_block());
    return s;
  };
  HarnessSequence one_by_one = sequence();
  while (one_by_one.tokens.size() < 100) step(one_by_one, {});

  HarnessSequence guessed = sequence();
  std::size_t steps = 0;
  for (; guessed.tokens.size() < 90; ++steps) {
    const std::size_t right = steps % 6;  // and the others wrong
    std::vector<Token> drafts(one_by_one.tokens.begin() + std::ssize(guessed.tokens),
                              one_by_one.tokens.begin() + std::ssize(guessed.tokens) + 5);
    for (std::size_t i = right; i < drafts.size(); ++i) {
      drafts[i] = (drafts[i] + 1) % kTinyVocabulary;
    }
    const std::size_t known = guessed.tokens.size();
    step(guessed, drafts);
    EXPECT_EQ(guessed.tokens.size(), known + right + 1);
  }
  one_by_one.tokens.resize(guessed.tokens.size());
  EXPECT_EQ(guessed.tokens, one_by_one.tokens);
  EXPECT_LT(steps, 30U);
}

TEST_F(Runner, WrongStepsAreOurBug) {
  const std::vector<Token> tokens = some_tokens(129);
  std::vector<BlockId> blocks;
  for (std::int32_t i = 0; i < 9; ++i) blocks.emplace_back(i);
  const std::vector<Token> unknown = {kTinyVocabulary};
  const auto run = [&](const StepRows& rows) {
    StepInput input;
    input.rows.push_back(rows);
    static_cast<void>(harness_->runner().run(input));
  };
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(run({tokens, 0, blocks, nullptr}), "max_step_tokens");
  EXPECT_DEATH(run({std::span(tokens).first(1), 512, blocks, nullptr}), "max_context");
  EXPECT_DEATH(run({std::span(tokens).first(17), 0, std::span(blocks).first(1), nullptr}),
               "blocks_for");
  EXPECT_DEATH(run({unknown, 0, blocks, nullptr}), "vocabulary_size");
}

TEST_F(Runner, LoadedModelGeneratesText) {
  std::vector<double> progress;
  ModelOptions options;
  options.path = path_;
  options.on_progress = [&](double share) { progress.push_back(share); };
  const auto model = load_gguf_model(options);
  ASSERT_TRUE(model.has_value()) << model.error().message;
  ASSERT_FALSE(progress.empty());
  EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
  EXPECT_EQ(progress.back(), 1.0);
  EXPECT_EQ((*model)->info().architecture, "llama");
  EXPECT_EQ((*model)->tokenizer().vocabulary_size(), kTinyVocabulary);

  const auto runner = (*model)->make_runner({.num_threads = 1, .max_context = 512});
  ASSERT_TRUE(runner.has_value());
  (*runner)->bind(harness_->kv());
  SamplingParams params;
  params.temperature = 0.0F;
  const std::vector<Token> prompt = some_tokens(12);
  const auto sampler = (*model)->samplers().make(params, prompt);
  ASSERT_TRUE(sampler.has_value()) << sampler.error().message;
  const std::vector<BlockId> blocks = {BlockId(3)};
  StepInput input;
  input.rows.push_back({prompt, 0, blocks, sampler->get()});
  const auto output = (*runner)->run(input);
  ASSERT_TRUE(output.has_value());
  EXPECT_EQ(output->sampled.at(0)->token, best_token(logits_of(*harness_, prompt)));
}

}  // namespace
}  // namespace sluice::testing
