#include "model/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace sluice {
namespace {

using ::testing::HasSubstr;

constexpr std::size_t kGiB = std::size_t{1} << 30;

Device device(const char* name, std::size_t free = kGiB) {
  return {.name = name, .description = "of a test", .total_bytes = free, .free_bytes = free};
}

Devices cpu_only() {
  return {{"cpu"}, {device("cpu")}};
}
Devices two_cards() {
  return {{"cpu", "vulkan"},
          {device("cpu", 64 * kGiB), device("vulkan:0", 8 * kGiB), device("vulkan:1", 24 * kGiB)}};
}

TEST(ChooseDevice, ByName) {
  struct Case {
    const char* wanted;
    const char* chosen;
  };
  for (const Case& c :
       {Case{"cpu", "cpu"}, Case{"vulkan", "vulkan:0"}, Case{"vulkan:0", "vulkan:0"},
        Case{"vulkan:1", "vulkan:1"}, Case{"vulkan:01", "vulkan:1"}, Case{"auto", "vulkan:1"}}) {
    SCOPED_TRACE(c.wanted);
    const auto chosen = choose_device(c.wanted, two_cards());
    ASSERT_TRUE(chosen.has_value()) << chosen.error().message;
    EXPECT_EQ(chosen->name, c.chosen);
  }
}

TEST(ChooseDevice, AutomaticIsTheCpuWhereThereIsNothingElse) {
  EXPECT_EQ(choose_device("auto", cpu_only())->name, "cpu");
}

TEST(ChooseDevice, SaysWhatIsThere) {
  struct Case {
    const char* wanted;
    Devices there;
    ErrorCode code;
    const char* message;
  };
  const auto bad = ErrorCode::kInvalidArgument;
  for (const Case& c : {
           Case{"cuda", cpu_only(), bad, "this build has no CUDA backend; it has: cpu"},
           Case{"cuda:1", two_cards(), bad, "this build has no CUDA backend; it has: cpu, vulkan"},
           Case{"vulkan", cpu_only(), bad, "this build has no Vulkan backend; it has: cpu"},
           Case{"vulkan:2", two_cards(), ErrorCode::kNotFound,
                "there is no device vulkan:2 here; there are: cpu, vulkan:0, vulkan:1"},
           Case{"vulkan",
                {{"cpu", "vulkan"}, {device("cpu")}},
                ErrorCode::kNotFound,
                "there is no device vulkan:0 here; there are: cpu"},
           Case{"tpu", two_cards(), bad, "\"tpu\" is not a device: expected cpu, cuda[:N]"},
           Case{"", two_cards(), bad, "is not a device"},
           Case{"cpu:0", two_cards(), bad, "is not a device"},
           Case{"vulkan:", two_cards(), bad, "is not a device"},
           Case{"vulkan:x", two_cards(), bad, "is not a device"},
           Case{"vulkan:-1", two_cards(), bad, "is not a device"},
           Case{"vulkan:99999999999", two_cards(), bad, "is not a device"},
           Case{"Vulkan", two_cards(), bad, "is not a device"},
       }) {
    SCOPED_TRACE(c.wanted);
    const auto chosen = choose_device(c.wanted, c.there);
    ASSERT_FALSE(chosen.has_value());
    EXPECT_EQ(chosen.error().code, c.code);
    EXPECT_THAT(chosen.error().message, HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace sluice
