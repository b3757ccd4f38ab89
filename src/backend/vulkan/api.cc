#include "backend/vulkan/api.h"

#include <dlfcn.h>

#include "base/error.h"

namespace sluice::backend::vulkan {
namespace {

/// Of the system's loader, or of MoltenVK itself.
constexpr const char* kLibraries[] = {"libvulkan.so.1", "libvulkan.so", "libvulkan.1.dylib",
                                      "/opt/homebrew/lib/libvulkan.1.dylib", "libMoltenVK.dylib"};

const char* name_of(VkResult result) {
  switch (result) {
    case VK_ERROR_OUT_OF_HOST_MEMORY: return "out of the host's memory";
    case VK_ERROR_OUT_OF_DEVICE_MEMORY: return "out of the device's memory";
    case VK_ERROR_INITIALIZATION_FAILED: return "initialisation failed";
    case VK_ERROR_DEVICE_LOST: return "the device was lost";
    case VK_ERROR_LAYER_NOT_PRESENT: return "a layer is not installed";
    case VK_ERROR_EXTENSION_NOT_PRESENT: return "an extension is not there";
    case VK_ERROR_FEATURE_NOT_PRESENT: return "a feature is not there";
    case VK_ERROR_INCOMPATIBLE_DRIVER: return "no driver";
    default: return "an error";
  }
}

struct Loaded {
  GlobalApi api;
  std::string why;
};

Loaded load() {
  Loaded loaded;
  void* library = nullptr;  // stays for as long as the program
  for (const char* name : kLibraries) {
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    loaded.why = "no Vulkan loader (Debian's libvulkan1; Homebrew's vulkan-loader and molten-vk)";
    return loaded;
  }
  auto& api = loaded.api;
  api.GetInstanceProcAddr =
      reinterpret_cast<PFN_vkGetInstanceProcAddr>(::dlsym(library, "vkGetInstanceProcAddr"));
  if (api.GetInstanceProcAddr == nullptr) {
    loaded.why = "the Vulkan loader has no vkGetInstanceProcAddr";
    return loaded;
  }
#define SLUICE_VK_LOAD(name) \
  api.name = reinterpret_cast<PFN_vk##name>(api.GetInstanceProcAddr(nullptr, "vk" #name));
  SLUICE_VK_GLOBAL(SLUICE_VK_LOAD)
#undef SLUICE_VK_LOAD
  if (api.EnumerateInstanceVersion == nullptr) loaded.why = "the Vulkan loader knows Vulkan 1.0 alone";
  return loaded;
}

}  // namespace

const GlobalApi* global_api(std::string& why) {
  static const Loaded loaded = load();
  why = loaded.why;
  return why.empty() ? &loaded.api : nullptr;
}

InstanceApi instance_api(const GlobalApi& global, VkInstance instance) {
  InstanceApi api;
#define SLUICE_VK_LOAD(name) \
  api.name = reinterpret_cast<PFN_vk##name>(global.GetInstanceProcAddr(instance, "vk" #name));
  SLUICE_VK_INSTANCE(SLUICE_VK_LOAD)
#undef SLUICE_VK_LOAD
  return api;
}

DeviceApi device_api(const InstanceApi& instance, VkDevice device) {
  DeviceApi api;
#define SLUICE_VK_LOAD(name) \
  api.name = reinterpret_cast<PFN_vk##name>(instance.GetDeviceProcAddr(device, "vk" #name));
  SLUICE_VK_DEVICE(SLUICE_VK_LOAD)
#undef SLUICE_VK_LOAD
  return api;
}

void check(VkResult result, const char* what) {
  if (result < 0) fail("Vulkan: {}: {} ({})", what, name_of(result), static_cast<int>(result));
}

}  // namespace sluice::backend::vulkan
