#include "memory/step_time_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"

namespace sluice {
namespace {

constexpr StepTimeCoefficients kTruth{4e-3, 3e-3, 5e-3, 2e-7};

StepShape random_shape(Rng& rng) {
  const auto decode = static_cast<std::int32_t>(rng.below(33));
  StepShape shape{.prefill_tokens = 0, .decode_sequences = decode, .context_tokens = 0};
  if (rng.below(4) == 0 || decode == 0) {
    shape.prefill_tokens = static_cast<std::int32_t>(1 + rng.below(512));
  }
  shape.context_tokens = static_cast<std::int64_t>(rng.below(2000)) * decode +
                         shape.prefill_tokens * static_cast<std::int64_t>(rng.below(2000));
  return shape;
}

double error(const StepTimeModel& model, const StepTimeCoefficients& truth, Rng rng) {
  double worst = 0;
  for (int i = 0; i < 200; ++i) {
    const StepShape shape = random_shape(rng);
    worst = std::max(worst, std::abs(to_seconds(model.predict(shape)) / truth.seconds(shape) - 1));
  }
  return worst;
}

TEST(StepTimeModel, SaneBeforeAnyData) {
  const StepTimeModel model;
  Duration last{};
  for (const StepShape& shape : {StepShape{0, 0, 0}, StepShape{0, 1, 0}, StepShape{0, 1, 5000},
                                 StepShape{0, 8, 40000}, StepShape{512, 8, 400000}}) {
    const Duration predicted = model.predict(shape);
    EXPECT_GT(predicted, last);
    EXPECT_LT(predicted, std::chrono::seconds(10));
    last = predicted;
  }
  EXPECT_GT(StepTimeModel(StepTimeCoefficients{}).predict({}), Duration::zero());
}

TEST(StepTimeModel, LearnsALinearDevice) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    const double speed = std::pow(10.0, -3 + static_cast<double>(rng.below(5)));  // fast to slow
    const StepTimeCoefficients truth{kTruth.base * speed, kTruth.per_prefill_token * speed,
                                     kTruth.per_decode_sequence * speed,
                                     kTruth.per_context_token * speed};
    StepTimeModel model;
    for (int i = 0; i < 400; ++i) {
      const StepShape shape = random_shape(rng);
      const double noise = 1 + 0.1 * (rng.uniform() - 0.5);
      model.observe(shape, from_seconds(truth.seconds(shape) * noise));
    }
    EXPECT_LT(error(model, truth, Rng(99)), 0.1);
    EXPECT_LT(model.relative_error(), 0.06);
    EXPECT_EQ(model.observations(), 400);
  }
}

TEST(StepTimeModel, OutliersDoNotMoveIt) {
  Rng rng(5);
  StepTimeModel model;
  for (int i = 0; i < 600; ++i) {
    const StepShape shape = random_shape(rng);
    const double factor = i % 20 == 19 ? 30 : 1 + 0.04 * (rng.uniform() - 0.5);
    model.observe(shape, from_seconds(kTruth.seconds(shape) * factor));
  }
  EXPECT_LT(error(model, kTruth, Rng(99)), 0.25);
}

TEST(StepTimeModel, FollowsALastingChange) {
  Rng rng(6);
  StepTimeModel model;
  const StepTimeCoefficients slow{3 * kTruth.base, 3 * kTruth.per_prefill_token,
                                  3 * kTruth.per_decode_sequence, 3 * kTruth.per_context_token};
  for (int i = 0; i < 1000; ++i) {
    const StepShape shape = random_shape(rng);
    // Another process took two thirds of the machine.
    model.observe(shape, from_seconds((i < 500 ? kTruth : slow).seconds(shape)));
  }
  EXPECT_LT(error(model, slow, Rng(99)), 0.1);
}

TEST(StepTimeModel, CoefficientsStayFiniteAndNotNegativeWhateverComes) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    StepTimeModel model;
    const StepShape same = random_shape(rng);
    for (int i = 0; i < 2000; ++i) {
      const StepShape shape = seed % 2 == 0 ? same : random_shape(rng);  // no excitation at all
      model.observe(shape, Duration(static_cast<Duration::rep>(std::pow(10.0, 10 * rng.uniform()) -
                                                               (seed % 3 == 0 ? 100 : 0))));
      const StepTimeCoefficients& c = model.coefficients();
      for (const double value :
           {c.base, c.per_prefill_token, c.per_decode_sequence, c.per_context_token}) {
        ASSERT_TRUE(std::isfinite(value));
        ASSERT_GE(value, 0);
      }
      ASSERT_GT(model.predict(shape), Duration::zero());
    }
  }
}

// One shape for long, with growing context, must not spoil what other shapes taught.
TEST(StepTimeModel, LongDecodeDoesNotForgetPrefill) {
  Rng rng(7);
  StepTimeModel model;
  for (int i = 0; i < 400; ++i) {
    const StepShape shape = random_shape(rng);
    model.observe(shape, from_seconds(kTruth.seconds(shape)));
  }
  for (int i = 0; i < 20000; ++i) {
    const StepShape shape{0, 8, 8 * (500 + i % 1000)};
    const double noise = 1 + 0.1 * (rng.uniform() - 0.5);
    model.observe(shape, from_seconds(kTruth.seconds(shape) * noise));
  }
  EXPECT_LT(error(model, kTruth, Rng(99)), 0.2);
}

// Layers cost the same for few tokens and grow with many: no device is linear. Minutes
// of chunks of one size, of long prompts, must not bend the fit to that kind of step.
TEST(StepTimeModel, OneKindOfStepForLongDoesNotSpoilTheOthers) {
  const auto took = [](const StepShape& s) {
    const double tokens = s.prefill_tokens + s.decode_sequences;
    const double dense = std::max(5.5e-3 + 5e-6 * tokens, 1.9e-5 * tokens);
    return 1.2e-3 + dense + 4e-8 * static_cast<double>(s.context_tokens - s.prefill_context) +
           7.5e-10 * static_cast<double>(s.prefill_context);
  };
  const auto shape_of = [](Rng& rng, std::int32_t chunk, std::int64_t position) {
    const auto rows = static_cast<std::int32_t>(1 + rng.below(40));
    return StepShape{.prefill_tokens = chunk,
                     .decode_sequences = rows,
                     .context_tokens = rows * std::int64_t{9000} + chunk * position,
                     .prefill_context = chunk * position};
  };
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    StepTimeModel model;
    const auto varied = [&] {
      const auto chunk = static_cast<std::int32_t>(rng.below(3) == 0 ? 1 + rng.below(2048) : 0);
      return shape_of(rng, chunk, static_cast<std::int64_t>(rng.below(60000)));
    };
    const auto watch = [&](const StepShape& s) {
      model.observe(s, from_seconds(took(s) * (1 + 0.02 * (rng.uniform() - 0.5))));
    };
    for (int i = 0; i < 1000; ++i) watch(varied());
    for (int i = 0; i < 10000; ++i) watch(shape_of(rng, 128, 128 * (i % 900)));
    for (int i = 0; i < 200; ++i) {
      const StepShape s = varied();
      EXPECT_NEAR(to_seconds(model.predict(s)) / took(s), 1, 0.35);
    }
  }
}

// A GPU: what a prefill row reads costs a fiftieth of what a decode row reads, and
// prompts are long. Both must come out, or nothing else does.
TEST(StepTimeModel, TellsPrefillContextFromDecodeContext) {
  const StepTimeCoefficients gpu{6e-3, 2e-5, 5e-6, 4e-8, 7.5e-10};
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    StepTimeModel model;
    double worst = 0;
    for (int i = 0; i < 3000; ++i) {
      const auto rows = static_cast<std::int32_t>(rng.below(60));
      const auto chunk = static_cast<std::int32_t>(rng.below(3) == 0 ? 1 + rng.below(2048) : 0);
      if (rows + chunk == 0) continue;
      const std::int64_t read = std::int64_t{chunk} * static_cast<std::int64_t>(rng.below(80000));
      const StepShape shape{.prefill_tokens = chunk,
                            .decode_sequences = rows,
                            .context_tokens = rows * std::int64_t{13000} + read,
                            .prefill_context = read};
      const double took = gpu.seconds(shape);
      if (i > 500) worst = std::max(worst, std::abs(to_seconds(model.predict(shape)) / took - 1));
      model.observe(shape, from_seconds(took * (1 + 0.04 * (rng.uniform() - 0.5))));
    }
    EXPECT_LT(worst, 0.15);
  }
}

}  // namespace
}  // namespace sluice
