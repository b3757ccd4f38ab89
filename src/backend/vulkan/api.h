// Vulkan's functions, found in its loader while the program runs: the program itself needs no Vulkan.
#pragma once

#define VK_NO_PROTOTYPES
#include <vulkan/vulkan.h>

#include <string>

namespace sluice::backend::vulkan {

// Those that need no instance, those of an instance, and those of a device.
#define SLUICE_VK_GLOBAL(F) \
  F(CreateInstance) F(EnumerateInstanceExtensionProperties) F(EnumerateInstanceVersion)
#define SLUICE_VK_INSTANCE(F)               \
  F(DestroyInstance)                        \
  F(EnumeratePhysicalDevices)               \
  F(GetPhysicalDeviceProperties2)           \
  F(GetPhysicalDeviceFeatures2)             \
  F(GetPhysicalDeviceMemoryProperties2)     \
  F(GetPhysicalDeviceQueueFamilyProperties) \
  F(EnumerateDeviceExtensionProperties) F(CreateDevice) F(GetDeviceProcAddr)
#define SLUICE_VK_DEVICE(F)      \
  F(DestroyDevice)               \
  F(GetDeviceQueue)              \
  F(AllocateMemory)              \
  F(FreeMemory)                  \
  F(MapMemory)                   \
  F(CreateBuffer)                \
  F(DestroyBuffer)               \
  F(GetBufferMemoryRequirements) \
  F(BindBufferMemory)            \
  F(CreateShaderModule)          \
  F(DestroyShaderModule)         \
  F(CreateDescriptorSetLayout)   \
  F(DestroyDescriptorSetLayout)  \
  F(CreatePipelineLayout)        \
  F(DestroyPipelineLayout)       \
  F(CreatePipelineCache)         \
  F(DestroyPipelineCache)        \
  F(GetPipelineCacheData)        \
  F(CreateComputePipelines)      \
  F(DestroyPipeline)             \
  F(CreateDescriptorPool)        \
  F(DestroyDescriptorPool)       \
  F(AllocateDescriptorSets)      \
  F(UpdateDescriptorSets)        \
  F(CreateCommandPool)           \
  F(DestroyCommandPool)          \
  F(AllocateCommandBuffers)      \
  F(FreeCommandBuffers)          \
  F(BeginCommandBuffer)          \
  F(EndCommandBuffer)            \
  F(CmdBindPipeline)             \
  F(CmdBindDescriptorSets)       \
  F(CmdPushConstants)            \
  F(CmdDispatch)                 \
  F(CmdPipelineBarrier)          \
  F(CmdCopyBuffer)               \
  F(CmdFillBuffer)               \
  F(CmdResetQueryPool)           \
  F(CmdWriteTimestamp)           \
  F(CreateQueryPool)             \
  F(DestroyQueryPool)            \
  F(GetQueryPoolResults)         \
  F(QueueSubmit)                 \
  F(GetFenceStatus) F(CreateFence) F(DestroyFence) F(WaitForFences) F(ResetFences) F(DeviceWaitIdle)

#define SLUICE_VK_POINTER(name) PFN_vk##name name = nullptr;
struct GlobalApi {
  SLUICE_VK_GLOBAL(SLUICE_VK_POINTER)
  PFN_vkGetInstanceProcAddr GetInstanceProcAddr = nullptr;
};
struct InstanceApi {
  SLUICE_VK_INSTANCE(SLUICE_VK_POINTER)
};
struct DeviceApi {
  SLUICE_VK_DEVICE(SLUICE_VK_POINTER)
};
#undef SLUICE_VK_POINTER

/// The loader's functions; null, and why, where no loader is installed.
const GlobalApi* global_api(std::string& why);
InstanceApi instance_api(const GlobalApi& global, VkInstance instance);
DeviceApi device_api(const InstanceApi& api, VkDevice device);

/// Throws Error "Vulkan: WHAT: VK_ERROR_..." unless it is a success.
void check(VkResult result, const char* what);

}  // namespace sluice::backend::vulkan
