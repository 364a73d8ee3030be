#include "simulation/profile_fit.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace sluice {
namespace {

// Decode rows at several contexts, prompts at several positions, both together.
std::vector<StepWork> grid() {
  std::vector<StepWork> steps;
  for (const std::int32_t rows : {1, 2, 4, 8, 16, 32, 64}) {
    for (const std::int32_t context : {16, 256, 1024, 4096}) {
      for (const bool samples : {true, false}) {
        StepWork work;
        for (std::int32_t i = 0; i < rows; ++i) work.add(1, context, samples);
        steps.push_back(work);
      }
    }
  }
  for (const std::int32_t tokens : {2, 8, 32, 64, 128, 256, 512}) {
    for (const std::int32_t position : {0, 512, 4096}) {
      for (const std::int32_t rows : {0, 8, 48}) {
        StepWork work;
        work.add(tokens, position, true);
        for (std::int32_t i = 0; i < rows; ++i) work.add(1, 300, true);
        steps.push_back(work);
      }
    }
  }
  return steps;
}

DeviceProfile shape() {
  return {.name = "here", .kv_tokens = 1000, .tokens = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512}};
}

std::vector<MeasuredStep> measured(const DeviceProfile& device, double noise) {
  Rng rng(7);
  std::vector<MeasuredStep> steps;
  for (const StepWork& work : grid()) {
    const double by = 1 + noise * (2 * rng.uniform() - 1);
    steps.push_back({work, device.seconds(work) * by});
  }
  return steps;
}

TEST(ProfileFit, FindsTheTimesOfADeviceAgain) {
  for (const char* name : device_names()) {
    const DeviceProfile device = *built_in_device(name);
    const auto fit = fit_profile(shape(), measured(device, 0));
    ASSERT_TRUE(fit) << fit.error().message;
    EXPECT_EQ(fit->profile.name, "here");
    EXPECT_LT(fit->p90_error, 0.02) << name;
    // Of steps that were not measured.
    StepWork other;
    other.add(100, 1500, true);
    for (int i = 0; i < 20; ++i) other.add(1, 700, true);
    EXPECT_NEAR(fit->profile.seconds(other) / device.seconds(other), 1, 0.03) << name;
  }
}

TEST(ProfileFit, NoiseEvensOut) {
  const DeviceProfile device = *built_in_device("h100-8b");
  const auto fit = fit_profile(shape(), measured(device, 0.1));
  ASSERT_TRUE(fit);
  EXPECT_LT(fit->median_error, 0.1);
  StepWork other;
  for (int i = 0; i < 24; ++i) other.add(1, 2000, true);
  EXPECT_NEAR(fit->profile.seconds(other) / device.seconds(other), 1, 0.06);
}

TEST(ProfileFit, GoesOnWhereNothingWasMeasured) {
  DeviceProfile wide = shape();
  wide.tokens.push_back(1024);
  const DeviceProfile device = *built_in_device("h100-8b");
  const auto fit = fit_profile(wide, measured(device, 0));
  ASSERT_TRUE(fit);
  const auto& head = fit->profile.head_s;
  EXPECT_GE(head.back(), head[head.size() - 2]);
  EXPECT_GE(fit->profile.dense_s.back(), fit->profile.dense_s[9]);
}

TEST(ProfileFit, SaysWhatIsMissing) {
  const auto steps = measured(*built_in_device("h100-8b"), 0);
  const auto few = fit_profile(shape(), std::span(steps).first(10));
  ASSERT_FALSE(few);
  EXPECT_NE(few.error().message.find("10 measured steps are too few for 24"), std::string::npos);
  auto none = steps;
  none[3].seconds = 0;
  EXPECT_FALSE(fit_profile(shape(), none));
}

TEST(ProfileFit, ItsTextIsReadAgain) {
  const auto fit = fit_profile(shape(), measured(*built_in_device("a100-8b"), 0));
  ASSERT_TRUE(fit);
  const auto again = parse_device(device_text(fit->profile));
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_EQ(again->name, "here");
  EXPECT_EQ(again->kv_tokens, 1000);
  for (const StepWork& work : grid()) {
    EXPECT_NEAR(again->seconds(work) / fit->profile.seconds(work), 1, 1e-4);
  }
}

}  // namespace
}  // namespace sluice
