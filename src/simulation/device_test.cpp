#include "simulation/device.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Device, TheBuiltInOnesAreReadable) {
  for (const char* name : device_names()) {
    const auto device = built_in_device(name);
    ASSERT_TRUE(device) << name << ": " << device.error().message;
    EXPECT_EQ(device->name, name);
    EXPECT_GT(device->kv_tokens, 100'000);
  }
  const auto unknown = built_in_device("abacus");
  ASSERT_FALSE(unknown);
  EXPECT_NE(unknown.error().message.find("h100-8b"), std::string::npos);
}

// Measured elsewhere: Llama 3.1 8B on one H100, 8 sequences of about 1k tokens, a
// token takes 7.4 to 7.9 ms (TensorRT-LLM, in the same public collection).
TEST(Device, AnH100DecodesAsFastAsMeasured) {
  const DeviceProfile h100 = *built_in_device("h100-8b");
  StepWork work;
  for (int i = 0; i < 8; ++i) work.add(1, 1100, true);
  EXPECT_NEAR(h100.seconds(work), 7.6e-3, 0.8e-3);
  EXPECT_GT(h100.prefill_seconds(8000, 2048), 0.12);
  EXPECT_LT(h100.prefill_seconds(8000, 2048), 0.3);
}

TEST(Device, TimeGrowsWithWork) {
  const DeviceProfile device = *built_in_device("a100-8b");
  double last = 0;
  for (std::int32_t tokens = 64; tokens <= 16384; tokens *= 2) {
    StepWork work;
    work.add(tokens, 0, true);
    EXPECT_GT(device.seconds(work), last) << tokens;
    last = device.seconds(work);
  }
}

TEST(Device, ARooflineReadsItsWeightsOrComputes) {
  const DeviceProfile d = roofline_device({.name = "x",
                                           .flops = 1e14,
                                           .bandwidth = 1e12,
                                           .memory = 80e9,
                                           .efficiency = 1,
                                           .parameters = 8e9});
  StepWork one;
  one.add(1, 0, true);
  EXPECT_NEAR(d.seconds(one), 5e-4 + 16e9 / 1e12 + d.decode_context_s, 1e-6);
  StepWork many;
  many.add(4096, 0, true);
  EXPECT_GT(d.seconds(many), 4096 * 16e9 / 1e14);
  EXPECT_EQ(d.kv_tokens, static_cast<std::int64_t>((72e9 - 16e9) / 131072));
}

TEST(Device, BadProfilesSayWhere) {
  const std::pair<const char*, const char*> cases[] = {
      {"sluice-device 2\n", "line 1"},
      {"name x\nkv_tokens nine\n", "line 2"},
      {"name x\n\nspeed 3\n", "line 3"},
      {"name x\nkv_tokens -4\n", "line 2"},
      {"name x\nkv_tokens 5\ntokens 1 2\ndense_s 1\nhead_s 0 0\n", "dense_s 1"},
      {"name x\nkv_tokens 5\ntokens 2 1\ndense_s 1 1\nhead_s 0 0\n", "ascend"},
      {"kv_tokens 5\n", "name"}};
  for (const auto& [text, expected] : cases) {
    const auto device = parse_device(text);
    ASSERT_FALSE(device) << text;
    EXPECT_NE(device.error().message.find(expected), std::string::npos) << device.error().message;
  }
  EXPECT_TRUE(
      parse_device("sluice-device 1\n# mine\nname x # y\nkv_tokens 5\ntokens 1\ndense_s "
                   "0.1\nhead_s 0\n"));
}

}  // namespace
}  // namespace sluice
