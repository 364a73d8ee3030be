// For LD_PRELOAD, in tests on lavapipe: Vulkan buffers are never destroyed.
//
// lavapipe of Mesa 22.3 keeps the buffers that a dispatch was given in its state, and
// looks at them in later ones: it dies once ggml has replaced scratch memory that grew.
// A buffer's handle stays here, its memory is freed as ever.
#include <dlfcn.h>
#include <vulkan/vulkan_core.h>

#include <cstring>

namespace {

PFN_vkGetDeviceProcAddr next_device_address = nullptr;

void VKAPI_CALL keep(VkDevice, VkBuffer, const VkAllocationCallbacks*) {}

PFN_vkVoidFunction instead(const char* name) {
  return std::strcmp(name, "vkDestroyBuffer") == 0 ? reinterpret_cast<PFN_vkVoidFunction>(&keep)
                                                   : nullptr;
}

PFN_vkVoidFunction VKAPI_CALL device_address(VkDevice device, const char* name) {
  if (const PFN_vkVoidFunction own = instead(name)) return own;
  return next_device_address(device, name);
}

}  // namespace

extern "C" PFN_vkVoidFunction VKAPI_CALL vkGetInstanceProcAddr(VkInstance instance,
                                                               const char* name) {
  static const auto next = reinterpret_cast<PFN_vkGetInstanceProcAddr>(
      dlsym(dlopen("libvulkan.so.1", RTLD_NOW), "vkGetInstanceProcAddr"));
  if (const PFN_vkVoidFunction own = instead(name)) return own;
  const PFN_vkVoidFunction found = next(instance, name);
  if (found == nullptr || std::strcmp(name, "vkGetDeviceProcAddr") != 0) return found;
  next_device_address = reinterpret_cast<PFN_vkGetDeviceProcAddr>(found);
  return reinterpret_cast<PFN_vkVoidFunction>(&device_address);
}
