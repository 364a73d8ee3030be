// Included before ggml-vulkan's sources (tools/vulkan.sh): what they use of VK_EXT_layer_settings,
// for Vulkan headers that are older than it, as Debian 12's 1.3.239 are. The structures are those
// of the Vulkan specification; an instance without the validation layer does not look at them.
#pragma once
#include <vulkan/vulkan_core.h>

#if defined(__cplusplus) && !defined(VK_EXT_layer_settings)
#include <cstdint>
#include <vector>

namespace vk {

enum class LayerSettingTypeEXT : std::int32_t { eBool32 = 0 };

struct LayerSettingEXT {
  const char* pLayerName;
  const char* pSettingName;
  LayerSettingTypeEXT type;
  std::uint32_t valueCount;
  const void* pValues;
};

struct LayerSettingsCreateInfoEXT {
  explicit LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT>& settings)
      : settingCount(static_cast<std::uint32_t>(settings.size())), pSettings(settings.data()) {}
  std::int32_t sType = 1000496000;
  const void* pNext = nullptr;
  std::uint32_t settingCount;
  const LayerSettingEXT* pSettings;
};

}  // namespace vk
#endif
