// What a runner on a device owes beside right logits: blocks that are shared, copied
// and handed over, graphs that are kept, and plain words where something does not fit.
//
// The device is the CPU with stock operations, or what SLUICE_TEST_DEVICE names.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "model/ggml/devices.h"
#include "runner_harness.h"
#include "tiny_model.h"

namespace sluice::testing {
namespace {

using ::testing::FloatNear;
using ::testing::HasSubstr;
using ::testing::Pointwise;

// Logits of the tiny model are of the order of 1; kernels of GPUs multiply in f16.
constexpr float kTolerance = 0.02F;

std::string test_device() {
  const char* told = std::getenv("SLUICE_TEST_DEVICE");
  return told == nullptr ? "cpu" : told;
}

std::vector<Token> some_tokens(std::size_t count, std::size_t first = 7) {
  std::vector<Token> tokens(count);
  for (std::size_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<Token>((first + i * 37) % kTinyVocabulary);
  }
  return tokens;
}

void step(RunnerHarness& harness, HarnessSequence& sequence, std::int32_t count) {
  HarnessSequence* batch[] = {&sequence};
  harness.step(batch, {&count, 1});
}

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = (std::filesystem::temp_directory_path() /
             fmt::format("sluice_device_{}.gguf", test->name()))
                .string();
    write_tiny_model({.architecture = "gemma3", .num_layers = 7, .sliding_window = 24}, path_);
    host_ = make("");
    device_ = make(test_device());
    ASSERT_TRUE(host_ != nullptr && device_ != nullptr);
  }
  void TearDown() override { std::filesystem::remove(path_); }

  [[nodiscard]] std::unique_ptr<RunnerHarness> make(const std::string& device) const {
    HarnessOptions options;
    options.device = device;
    auto harness = RunnerHarness::load(path_, options);
    EXPECT_TRUE(harness.has_value()) << harness.error().message;
    return harness ? std::move(*harness) : nullptr;
  }
  // After all of `tokens`, by our own attention.
  [[nodiscard]] std::vector<float> expected(const std::vector<Token>& tokens) const {
    HarnessSequence sequence;
    sequence.tokens = tokens;
    step(*host_, sequence, static_cast<std::int32_t>(tokens.size()));
    host_->release(sequence);
    return sequence.sampler.logits();
  }
  // As a handoff moves it.
  static void hand_over(RunnerHarness& from, RunnerHarness& to, HarnessSequence& sequence) {
    std::vector<std::byte> bytes(from.kv().layout.block_bytes());
    std::vector<std::byte> back(bytes.size());
    for (BlockId& block : sequence.blocks) {
      const BlockId target = to.take_block();
      from.kv().read(block, bytes);
      to.kv().write(target, bytes);
      to.kv().read(target, back);
      EXPECT_EQ(bytes, back);
      block = target;
    }
  }

  std::string path_;
  std::unique_ptr<RunnerHarness> host_;
  std::unique_ptr<RunnerHarness> device_;
};

TEST_F(OnDevice, KvIsHandedOverBothWays) {
  HarnessSequence sequence;
  sequence.tokens = some_tokens(70);
  step(*host_, sequence, 37);
  hand_over(*host_, *device_, sequence);
  step(*device_, sequence, 20);
  EXPECT_THAT(sequence.sampler.logits(),
              Pointwise(FloatNear(kTolerance), expected(some_tokens(57))));
  const auto other = make(test_device());
  ASSERT_NE(other, nullptr);
  hand_over(*device_, *other, sequence);
  step(*other, sequence, 1);
  EXPECT_THAT(sequence.sampler.logits(),
              Pointwise(FloatNear(kTolerance), expected(some_tokens(58))));
  hand_over(*other, *host_, sequence);
  step(*host_, sequence, 12);
  EXPECT_THAT(sequence.sampler.logits(),
              Pointwise(FloatNear(kTolerance), expected(some_tokens(70))));
}

// Two sequences read the same two blocks in one step, and go on differently.
TEST_F(OnDevice, SequencesShareBlocks) {
  std::vector<HarnessSequence> sequences(2);
  sequences[0].tokens = some_tokens(50);
  sequences[1].tokens = some_tokens(32);
  for (const Token token : some_tokens(9, 201)) sequences[1].tokens.push_back(token);
  step(*device_, sequences[0], 32);
  sequences[1].blocks = sequences[0].blocks;
  sequences[1].computed = 32;
  HarnessSequence* batch[] = {&sequences[0], &sequences[1]};
  const std::int32_t counts[] = {18, 9};
  device_->step(batch, counts);
  for (const HarnessSequence& s : sequences) {
    EXPECT_THAT(s.sampler.logits(), Pointwise(FloatNear(kTolerance), expected(s.tokens)));
  }
}

// Sixteen tokens are shared, four more are copied out of a block that goes on differently.
TEST_F(OnDevice, BlocksAreCopied) {
  const std::vector<Token> first = some_tokens(30);
  std::vector<Token> second(first.begin(), first.begin() + 20);
  for (const Token token : some_tokens(9, 201)) second.push_back(token);
  const std::vector<BlockId> own = {device_->take_block(), device_->take_block()};
  const std::vector<BlockId> mine = {own[0], device_->take_block()};
  StepInput prefill;
  prefill.rows.push_back({first, 0, own, nullptr});
  ASSERT_TRUE(device_->any_runner().run(prefill).has_value());

  StepInput rest;
  CapturingSampler sampler;
  rest.copies.push_back({own[1], mine[1], 4});
  rest.rows.push_back({std::span(second).subspan(20), 20, mine, &sampler});
  ASSERT_TRUE(device_->any_runner().run(rest).has_value());
  EXPECT_THAT(sampler.logits(), Pointwise(FloatNear(kTolerance), expected(second)));
}

TEST_F(OnDevice, ASteadyBatchKeepsItsGraph) {
  HarnessSequence sequence;
  sequence.tokens = some_tokens(60);
  step(*device_, sequence, 30);
  step(*device_, sequence, 1);
  const std::int64_t built = device_->device_runner().num_graphs_built();
  for (int i = 0; i < 20; ++i) step(*device_, sequence, 1);
  EXPECT_EQ(device_->device_runner().num_graphs_built(), built);
  EXPECT_THAT(sequence.sampler.logits(),
              Pointwise(FloatNear(kTolerance), expected(some_tokens(51))));
}

// The embedding's rows are looked up, and tokens drawn, by the host: nothing else.
TEST_F(OnDevice, TheDeviceDoesTheWork) {
  HarnessSequence sequence;
  sequence.tokens = some_tokens(20);
  step(*device_, sequence, 20);
  const DeviceRunner::Split split = device_->device_runner().split();
  fmt::print("{} operations on {}, {} by the host\n", split.device_ops, test_device(),
             split.host_ops);
  if (test_device() == "cpu") {
    EXPECT_EQ(split.device_ops, 0);
    EXPECT_GT(split.host_ops, 100);
  } else {
    EXPECT_GT(split.device_ops, 100);
    EXPECT_LE(split.host_ops, 3);
  }
}

TEST_F(OnDevice, WhatDoesNotFitIsSaidInNumbers) {
  ggml_backend_dev_t device = ggml_device(test_device());
  KvLayout layout = device_->kv().layout;
  const auto large = GgmlDeviceKv::make(device, layout, 1 << 30);
  ASSERT_FALSE(large.has_value());
  EXPECT_EQ(large.error().code, ErrorCode::kNeverFits);
  EXPECT_THAT(large.error().message, HasSubstr("MiB of KV memory (1073741824 blocks of"));
  EXPECT_THAT(large.error().message, HasSubstr("MiB free"));
  layout.type = KvType::kQ8_0;
  const auto coarse = GgmlDeviceKv::make(device, layout, 4);
  ASSERT_FALSE(coarse.has_value());
  EXPECT_EQ(coarse.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(coarse.error().message, HasSubstr("q8_0"));
  EXPECT_EQ(ggml_device("vulkan:99"), nullptr);
}

}  // namespace
}  // namespace sluice::testing
