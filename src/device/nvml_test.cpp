#include "device/nvml.h"

#include <gtest/gtest.h>

#include "device/shared_library.h"

namespace sluice {
namespace {

TEST(Nvml, ReadsMemoryAndUtilisationOfEveryDevice) {
  const auto nvml = Nvml::load(FAKE_NVML);
  ASSERT_TRUE(nvml) << nvml.error().message;
  const auto devices = (*nvml)->read();
  ASSERT_TRUE(devices) << devices.error().message;
  ASSERT_EQ(devices->size(), 2U);
  EXPECT_EQ((*devices)[0].name, "Fake 0");
  EXPECT_EQ((*devices)[0].total_bytes, std::size_t{80} << 30);
  EXPECT_EQ((*devices)[0].used_bytes, std::size_t{20} << 30);
  EXPECT_EQ((*devices)[0].busy_percent, 37);
  EXPECT_EQ((*devices)[1].free_bytes, std::size_t{59} << 30);
  EXPECT_FALSE((*devices)[1].busy_percent.has_value());  // it does not tell
  EXPECT_EQ(device_at("0000:c2:00.0", *devices), &(*devices)[1]);
  EXPECT_EQ(device_at("0000:c3:00.0", *devices), nullptr);
  EXPECT_EQ(device_at("", *devices), nullptr);  // of a device that does not say where it is
}

TEST(Nvml, AnyCallMayFailAndItIsShutDownOnce) {
  auto library = SharedLibrary::load(FAKE_NVML);
  ASSERT_TRUE(library);
  void (*fail_at)(int) = nullptr;
  int (*started)() = nullptr;
  ASSERT_TRUE(library->bind("fake_nvml_fail_at", fail_at));
  ASSERT_TRUE(library->bind("fake_nvml_started", started));
  {
    const auto nvml = Nvml::load(FAKE_NVML);
    ASSERT_TRUE(nvml);
    EXPECT_EQ(started(), 1);
    for (int call = 1; call <= 11; ++call) {
      fail_at(call);
      const auto devices = (*nvml)->read();
      ASSERT_FALSE(devices) << call;
      EXPECT_EQ(devices.error().code, ErrorCode::kUnavailable);
      EXPECT_NE(devices.error().message.find("GPU is lost (15)"), std::string::npos);
    }
    fail_at(0);
    EXPECT_TRUE((*nvml)->read());
  }
  EXPECT_EQ(started(), 0);
}

TEST(Nvml, MissingIsAnAnswer) {
  EXPECT_EQ(Nvml::load("libno-such-nvml.so.1").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Nvml::load("libc.so.6").error().code, ErrorCode::kNotFound);
}

}  // namespace
}  // namespace sluice
