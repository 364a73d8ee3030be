#include "model/paced_runner.h"

#include <gtest/gtest.h>

#include <vector>

#include "model/fake_model_runner.h"

namespace sluice {
namespace {

using namespace std::chrono_literals;

TEST(PacedRunner, AStepTakesWhatTheDeviceWouldNeedAndAnswersTheSame) {
  const StepPace pace{
      .base = 2ms, .per_prefill_token = 1ms, .per_decode_row = 500us, .per_context_thousand = 1ms};
  const std::vector<Token> prompt{1, 2, 3, 4};
  const std::vector<Token> next{5};
  const std::vector<BlockId> blocks{BlockId{0}, BlockId{1}};
  const std::vector<BlockId> other{BlockId{2}, BlockId{3}};
  FakeSampler sampler(1000, 0, {});
  const auto step = [&] {
    StepInput input;
    input.rows.push_back({.tokens = prompt, .position = 0, .blocks = blocks, .sampler = &sampler});
    input.rows.push_back({.tokens = next, .position = 3, .blocks = other, .sampler = nullptr});
    return input;
  };
  EXPECT_EQ(pace.of(step()), 2ms + 4ms + 500us + 14us);  // 10 + 4 tokens of context
  EXPECT_EQ(pace.of({}), 2ms);

  FakeModelRunner alone{FakeModelOptions{}};
  const auto paced = make_paced_runner(std::make_unique<FakeModelRunner>(FakeModelOptions{}), pace);
  const auto expected = alone.run(step());
  const auto output = paced->run(step());
  ASSERT_TRUE(expected && output);
  EXPECT_EQ(output->sampled[0]->token, expected->sampled[0]->token);
  EXPECT_GE(output->duration, pace.of(step()));
}

}  // namespace
}  // namespace sluice
