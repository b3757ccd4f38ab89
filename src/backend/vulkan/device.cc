#include "backend/vulkan/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/error.h"

namespace sluice::backend::vulkan {

/// Vulkan in use; one for all devices.
class Instance {
 public:
  explicit Instance(const GlobalApi& global);
  ~Instance() { api.DestroyInstance(handle, nullptr); }
  Instance(const Instance&) = delete;
  Instance& operator=(const Instance&) = delete;
  std::vector<VkPhysicalDevice> devices() const;
  DeviceInfo info(VkPhysicalDevice device) const;
  std::vector<std::string> extensions(VkPhysicalDevice device) const;

  VkInstance handle = nullptr;
  InstanceApi api;
};

namespace {

template <typename T, typename F>
std::vector<T> enumerate(F&& call) {
  uint32_t count = 0;
  call(&count, static_cast<T*>(nullptr));
  std::vector<T> list(count);
  if (count > 0) call(&count, list.data());
  list.resize(count);
  return list;
}

std::shared_ptr<Instance> instance(std::string& why) {
  static std::mutex mutex;
  static std::weak_ptr<Instance> known;
  const std::lock_guard lock(mutex);
  if (auto shared = known.lock()) return shared;
  const GlobalApi* global = global_api(why);
  if (global == nullptr) return nullptr;
  try {
    auto made = std::make_shared<Instance>(*global);
    known = made;
    return made;
  } catch (const Error& error) {
    why = error.what();
    return nullptr;
  }
}

constexpr const char* kSoftware = "software";

const char* kind_of(VkPhysicalDeviceType type) {
  switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU: return "integrated GPU";
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU: return "discrete GPU";
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU: return "virtual GPU";
    case VK_PHYSICAL_DEVICE_TYPE_CPU: return kSoftware;
    default: return "other";
  }
}

uint32_t largest_heap(const VkPhysicalDeviceMemoryProperties& memory) {
  uint32_t largest = 0;
  const auto rank = [&](uint32_t heap) {
    const bool local = (memory.memoryHeaps[heap].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT) != 0;
    return std::pair(local, memory.memoryHeaps[heap].size);
  };
  for (uint32_t heap = 1; heap < memory.memoryHeapCount; ++heap) {
    if (rank(heap) > rank(largest)) largest = heap;
  }
  return largest;
}

/// Of queues those that draw nothing: from kernel to kernel they are quicker. The families' count: there is
/// none.
uint32_t family_for_kernels(const std::vector<VkQueueFamilyProperties>& families) {
  const auto count = static_cast<uint32_t>(families.size());
  uint32_t found = count;
  for (uint32_t family = count; family-- > 0;) {
    const VkQueueFlags flags = families[family].queueFlags;
    if ((flags & VK_QUEUE_COMPUTE_BIT) == 0) continue;
    if (found == count || (flags & VK_QUEUE_GRAPHICS_BIT) == 0 ||
        (families[found].queueFlags & VK_QUEUE_GRAPHICS_BIT) != 0)
      found = family;
  }
  return found;
}

constexpr uint32_t kVisible = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT;

constexpr const char* kDot4 = "VK_KHR_shader_integer_dot_product";

/// What owners are told of: what kernels use, and what they may use one day.
constexpr const char* kInteresting[] = {
    "VK_KHR_cooperative_matrix",  "VK_NV_cooperative_matrix",    "VK_KHR_shader_integer_dot_product",
    "VK_EXT_memory_budget",       "VK_EXT_external_memory_host", "VK_EXT_subgroup_size_control",
    "VK_KHR_shader_float16_int8", "VK_KHR_16bit_storage",        "VK_KHR_8bit_storage",
    "VK_KHR_portability_subset"};

}  // namespace

Instance::Instance(const GlobalApi& global) {
  VkApplicationInfo application{VK_STRUCTURE_TYPE_APPLICATION_INFO};
  application.pApplicationName = "sluice";
  application.apiVersion = VK_API_VERSION_1_1;
  VkInstanceCreateInfo create{VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
  create.pApplicationInfo = &application;
  std::vector<const char*> names;
  const auto offered = enumerate<VkExtensionProperties>([&](uint32_t* count, VkExtensionProperties* list) {
    global.EnumerateInstanceExtensionProperties(nullptr, count, list);
  });
  for (const auto& extension : offered) {
    if (std::strcmp(extension.extensionName, "VK_KHR_portability_enumeration") != 0) continue;
    names.push_back("VK_KHR_portability_enumeration");  // MoltenVK's devices are seen by who asks for such
    create.flags |= VK_INSTANCE_CREATE_ENUMERATE_PORTABILITY_BIT_KHR;
  }
  create.enabledExtensionCount = static_cast<uint32_t>(names.size());
  create.ppEnabledExtensionNames = names.data();
  check(global.CreateInstance(&create, nullptr, &handle), "an instance");
  api = instance_api(global, handle);
}

std::vector<VkPhysicalDevice> Instance::devices() const {
  return enumerate<VkPhysicalDevice>(
      [&](uint32_t* count, VkPhysicalDevice* list) { api.EnumeratePhysicalDevices(handle, count, list); });
}

std::vector<std::string> Instance::extensions(VkPhysicalDevice device) const {
  std::vector<std::string> names;
  for (const auto& extension :
       enumerate<VkExtensionProperties>([&](uint32_t*count, VkExtensionProperties*list) {
         api.EnumerateDeviceExtensionProperties(device, nullptr, count, list);
       }))
    names.emplace_back(extension.extensionName);
  return names;
}

DeviceInfo Instance::info(VkPhysicalDevice device) const {
  VkPhysicalDeviceMaintenance3Properties allocation{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MAINTENANCE_3_PROPERTIES};
  VkPhysicalDeviceSubgroupProperties subgroups{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES,
                                               &allocation};
  VkPhysicalDeviceProperties2 properties{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2, &subgroups};
  api.GetPhysicalDeviceProperties2(device, &properties);
  VkPhysicalDeviceMemoryProperties2 memory{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  api.GetPhysicalDeviceMemoryProperties2(device, &memory);
  const auto& limits = properties.properties.limits;
  const auto& heaps = memory.memoryProperties;
  const uint32_t heap = largest_heap(heaps);
  DeviceInfo info{
      .name = properties.properties.deviceName,
      .kind = kind_of(properties.properties.deviceType),
      .driver = fmt::format("{:#x}:{:#x} driver {:#x}", properties.properties.vendorID,
                            properties.properties.deviceID, properties.properties.driverVersion),
      .api_version = properties.properties.apiVersion,
      .memory_bytes = static_cast<int64_t>(heaps.memoryHeaps[heap].size),
      .subgroup_size = subgroups.subgroupSize,
      .most_bound_bytes = limits.maxStorageBufferRange,
      .most_allocated_bytes =
          static_cast<int64_t>(std::min<uint64_t>(allocation.maxMemoryAllocationSize, uint64_t{1} << 62)),
      .shared_bytes = limits.maxComputeSharedMemorySize,
      .offset_alignment = static_cast<int64_t>(limits.minStorageBufferOffsetAlignment),
      .timestamp_ns =
          limits.timestampComputeAndGraphics != 0 ? static_cast<double>(limits.timestampPeriod) : 0};
  // What the host sees of a card's own memory, it sees through a window: kernels need not be as quick there.
  const bool apart = properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU ||
                     properties.properties.deviceType == VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU;
  for (uint32_t type = 0; type < heaps.memoryTypeCount && !apart; ++type) {
    constexpr uint32_t kBoth = kVisible | VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
    if (heaps.memoryTypes[type].heapIndex == heap && (heaps.memoryTypes[type].propertyFlags & kBoth) == kBoth)
      info.unified = true;
  }
  const auto names = extensions(device);
  for (const char* name : kInteresting) {
    if (std::find(names.begin(), names.end(), name) != names.end()) info.features.emplace_back(name);
  }
  info.dot4 = std::find(names.begin(), names.end(), kDot4) != names.end();
  constexpr uint32_t kNeeded = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_ARITHMETIC_BIT;
  if (properties.properties.apiVersion < VK_API_VERSION_1_1) info.lacks = "Vulkan 1.1";
  if ((subgroups.supportedOperations & kNeeded) != kNeeded ||
      (subgroups.supportedStages & VK_SHADER_STAGE_COMPUTE_BIT) == 0)
    info.lacks = "arithmetic of subgroups in compute shaders";
  if (limits.maxPerStageDescriptorStorageBuffers < 12) info.lacks = "12 buffers a shader";
  if (limits.maxComputeWorkGroupInvocations < 256) info.lacks = "workgroups of 256";
  return info;
}

std::vector<DeviceInfo> list_devices(std::string& why) {
  const auto vulkan = instance(why);
  if (!vulkan) return {};
  std::vector<DeviceInfo> list;
  for (VkPhysicalDevice device : vulkan->devices()) list.push_back(vulkan->info(device));
  if (list.empty()) why = "no Vulkan device";
  return list;
}

Device::Device(int number, bool staged, bool dot4) : staged_(staged) {
  std::string why;
  instance_ = instance(why);
  if (!instance_) fail("{}", why);
  const InstanceApi& api = instance_->api;
  const auto devices = instance_->devices();
  if (number < 0 || static_cast<size_t>(number) >= devices.size())
    fail("no Vulkan device {}: there {} {}", number, devices.size() == 1 ? "is" : "are", devices.size());
  physical_ = devices[static_cast<size_t>(number)];
  info_ = instance_->info(physical_);
  if (!info_.lacks.empty()) fail("{} lacks {}", info_.name, info_.lacks);
  info_.dot4 = info_.dot4 && dot4;
  VkPhysicalDeviceMemoryProperties2 memory{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2};
  api.GetPhysicalDeviceMemoryProperties2(physical_, &memory);
  memory_ = memory.memoryProperties;
  const auto families =
      enumerate<VkQueueFamilyProperties>([&](uint32_t* count, VkQueueFamilyProperties* list) {
        api.GetPhysicalDeviceQueueFamilyProperties(physical_, count, list);
      });
  const uint32_t family = family_for_kernels(families);
  if (family == families.size()) fail("{} computes nothing", info_.name);
  if (families[family].timestampValidBits == 0) info_.timestamp_ns = 0;
  const float priority = 1;
  VkDeviceQueueCreateInfo queue{VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
  queue.queueFamilyIndex = family, queue.queueCount = 1, queue.pQueuePriorities = &priority;
  std::vector<const char*> names;
  const auto has = [&](const char* name) {
    return std::find(info_.features.begin(), info_.features.end(), name) != info_.features.end();
  };
  has_budget_ = has("VK_EXT_memory_budget");
  if (has_budget_) names.push_back("VK_EXT_memory_budget");
  if (has("VK_KHR_portability_subset")) names.push_back("VK_KHR_portability_subset");
  VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dots{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR};
  dots.shaderIntegerDotProduct = VK_TRUE;
  VkDeviceCreateInfo create{VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
  if (info_.dot4) names.push_back(kDot4), create.pNext = &dots;
  create.queueCreateInfoCount = 1, create.pQueueCreateInfos = &queue;
  create.enabledExtensionCount = static_cast<uint32_t>(names.size());
  create.ppEnabledExtensionNames = names.data();
  check(api.CreateDevice(physical_, &create, nullptr, &device_), info_.name.c_str());
  api_ = device_api(api, device_);
  api_.GetDeviceQueue(device_, family, 0, &queue_);
  VkCommandPoolCreateInfo pool{VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
  pool.queueFamilyIndex = family;
  check(api_.CreateCommandPool(device_, &pool, nullptr, &pool_), "commands");
  const VkFenceCreateInfo fence{VK_STRUCTURE_TYPE_FENCE_CREATE_INFO};
  check(api_.CreateFence(device_, &fence, nullptr, &fence_), "a fence");
}

Device::~Device() {
  if (device_ == nullptr) return;
  api_.DeviceWaitIdle(device_);
  api_.DestroyFence(device_, fence_, nullptr);
  api_.DestroyCommandPool(device_, pool_, nullptr);
  api_.DestroyDevice(device_, nullptr);
}

VkCommandBuffer Device::new_commands() const {
  VkCommandBufferAllocateInfo allocate{VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
  allocate.commandPool = pool_, allocate.level = VK_COMMAND_BUFFER_LEVEL_PRIMARY;
  allocate.commandBufferCount = 1;
  VkCommandBuffer commands = nullptr;
  check(api_.AllocateCommandBuffers(device_, &allocate, &commands), "commands");
  return commands;
}

void Device::free_commands(VkCommandBuffer commands) const {
  api_.FreeCommandBuffers(device_, pool_, 1, &commands);
}

void Device::record_barrier(VkCommandBuffer commands) const {
  VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT;
  api_.CmdPipelineBarrier(commands, VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
                          VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT, 0, 1, &barrier, 0, nullptr, 0, nullptr);
}

void Device::record_full_barrier(VkCommandBuffer commands) const {
  VkMemoryBarrier barrier{VK_STRUCTURE_TYPE_MEMORY_BARRIER};
  barrier.srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT | VK_ACCESS_TRANSFER_WRITE_BIT;
  barrier.dstAccessMask = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT |
                          VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT |
                          VK_ACCESS_HOST_READ_BIT;
  constexpr uint32_t kFrom = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT;
  api_.CmdPipelineBarrier(commands, kFrom, kFrom | VK_PIPELINE_STAGE_HOST_BIT, 0, 1, &barrier, 0, nullptr, 0,
                          nullptr);
}

/// A thread that sleeps until the fence is woken late, by 80 us where an H200 was measured: near the usual
/// end it looks itself. A device that is the host's processor needs it for other things.
void Device::wait(int64_t usual_ns) const {
  constexpr int64_t kAwakeNs = 1'000'000;
  if (usual_ns > 0 && info_.kind != kSoftware) {
    const auto asleep_ns = static_cast<uint64_t>(std::max(usual_ns * 3 / 4, usual_ns - kAwakeNs));
    VkResult result = api_.WaitForFences(device_, 1, &fence_, VK_TRUE, asleep_ns);
    for (const int64_t end_ns = now_ns() + 2 * kAwakeNs; result > 0 && now_ns() < end_ns;)
      result = api_.GetFenceStatus(device_, fence_);
    check(result, "a step");
  }
  check(api_.WaitForFences(device_, 1, &fence_, VK_TRUE, UINT64_MAX), "a step");
}

void Device::run(VkCommandBuffer commands, int64_t usual_ns) const {
  const std::lock_guard lock(mutex_);
  VkSubmitInfo submit{VK_STRUCTURE_TYPE_SUBMIT_INFO};
  submit.commandBufferCount = 1, submit.pCommandBuffers = &commands;
  check(api_.QueueSubmit(queue_, 1, &submit, fence_), "a step");
  wait(usual_ns);
  check(api_.ResetFences(device_, 1, &fence_), "a fence");
}

int64_t Device::available_bytes() const {
  if (!has_budget_) return info_.memory_bytes;
  VkPhysicalDeviceMemoryBudgetPropertiesEXT budget{
      VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
  VkPhysicalDeviceMemoryProperties2 memory{VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, &budget};
  instance_->api.GetPhysicalDeviceMemoryProperties2(physical_, &memory);
  const uint32_t heap = largest_heap(memory_);
  const uint64_t all = budget.heapBudget[heap], used = budget.heapUsage[heap];
  return static_cast<int64_t>(all > used ? all - used : 0);
}

uint32_t Device::memory_type(Place place, uint32_t allowed) const {
  constexpr uint32_t kLocal = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT;
  // What is wanted, the best first. Vulkan lists memory that the host does not see before the same that it
  // sees.
  std::vector<uint32_t> wanted;
  if (place == Place::Device && writes_directly()) wanted = {kLocal | kVisible};
  if (place == Place::Device) wanted.insert(wanted.end(), {kLocal, 0});
  if (place == Place::Written) wanted = {kLocal | kVisible, kVisible};
  if (place == Place::ReadBack) wanted = {kVisible | VK_MEMORY_PROPERTY_HOST_CACHED_BIT, kVisible};
  const uint32_t heap = largest_heap(memory_);
  for (const uint32_t flags : wanted) {
    for (uint32_t type = 0; type < memory_.memoryTypeCount; ++type) {
      const auto& offered = memory_.memoryTypes[type];
      if ((allowed >> type & 1) == 0 || (offered.propertyFlags & flags) != flags) continue;
      if (place == Place::Device && flags != 0 && offered.heapIndex != heap) continue;
      return type;
    }
  }
  fail("{} has no such memory", info_.name);
}

Buffer::Buffer(const Device& device, int64_t bytes, Device::Place place) : device_(&device), bytes_(bytes) {
  const DeviceApi& api = device.api();
  VkBufferCreateInfo create{VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
  create.size = static_cast<VkDeviceSize>(bytes);
  create.usage = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_TRANSFER_SRC_BIT |
                 VK_BUFFER_USAGE_TRANSFER_DST_BIT;
  check(api.CreateBuffer(device.handle(), &create, nullptr, &buffer_), "a buffer");
  VkMemoryRequirements needs{};
  api.GetBufferMemoryRequirements(device.handle(), buffer_, &needs);
  VkMemoryAllocateInfo allocate{VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
  allocate.allocationSize = needs.size;
  try {
    allocate.memoryTypeIndex = device.memory_type(place, needs.memoryTypeBits);
    check(api.AllocateMemory(device.handle(), &allocate, nullptr, &memory_),
          fmt::format("{} MB of memory", bytes >> 20).c_str());
    check(api.BindBufferMemory(device.handle(), buffer_, memory_, 0), "memory");
    const VkMemoryPropertyFlags flags = device.flags_of(allocate.memoryTypeIndex);
    const bool wanted = place != Device::Place::Device || device.writes_directly();
    is_read_quickly_ = (flags & VK_MEMORY_PROPERTY_HOST_CACHED_BIT) != 0;
    if (wanted && (flags & kVisible) == kVisible) {
      void* at = nullptr;
      check(api.MapMemory(device.handle(), memory_, 0, VK_WHOLE_SIZE, 0, &at), "memory");
      mapped_ = static_cast<std::byte*>(at);
    }
  } catch (...) {
    api.DestroyBuffer(device.handle(), buffer_, nullptr);
    if (memory_ != nullptr) api.FreeMemory(device.handle(), memory_, nullptr);
    throw;
  }
}

Buffer::~Buffer() {
  if (device_ == nullptr) return;
  device_->api().DestroyBuffer(device_->handle(), buffer_, nullptr);
  device_->api().FreeMemory(device_->handle(), memory_, nullptr);
}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(buffer_, other.buffer_);
  std::swap(memory_, other.memory_);
  std::swap(mapped_, other.mapped_);
  std::swap(is_read_quickly_, other.is_read_quickly_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

namespace {

/// Records, runs and forgets.
template <typename F>
void run_once(const Device& device, F&& record) {
  VkCommandBuffer commands = device.new_commands();
  const VkCommandBufferBeginInfo begin{VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
  check(device.api().BeginCommandBuffer(commands, &begin), "commands");
  record(commands);
  device.record_full_barrier(commands);
  check(device.api().EndCommandBuffer(commands), "commands");
  device.run(commands);
  device.free_commands(commands);
}

}  // namespace

void Buffer::write(int64_t at, std::span<const std::byte> bytes, const Buffer* stage) {
  if (bytes.empty()) return;
  if (mapped_ != nullptr) {
    std::memcpy(mapped_ + at, bytes.data(), bytes.size());
    return;
  }
  Buffer own;
  if (stage == nullptr) {
    own = Buffer(*device_, std::min(kStageBytes, static_cast<int64_t>(bytes.size())), Device::Place::Written);
    stage = &own;
  }
  for (size_t done = 0; done < bytes.size();) {
    const size_t count = std::min(bytes.size() - done, static_cast<size_t>(stage->bytes()));
    std::memcpy(stage->mapped(), bytes.data() + done, count);
    const VkBufferCopy copy{0, static_cast<VkDeviceSize>(at) + done, count};
    run_once(*device_, [&](VkCommandBuffer commands) {
      device_->api().CmdCopyBuffer(commands, stage->handle(), buffer_, 1, &copy);
    });
    done += count;
  }
}

void Buffer::read(int64_t at, std::span<std::byte> bytes) const {
  if (bytes.empty()) return;
  if (mapped_ != nullptr && is_read_quickly_) {
    std::memcpy(bytes.data(), mapped_ + at, bytes.size());
    return;
  }
  const Buffer stage(*device_, static_cast<int64_t>(bytes.size()), Device::Place::ReadBack);
  const VkBufferCopy copy{static_cast<VkDeviceSize>(at), 0, bytes.size()};
  run_once(*device_, [&](VkCommandBuffer commands) {
    device_->api().CmdCopyBuffer(commands, buffer_, stage.handle(), 1, &copy);
  });
  std::memcpy(bytes.data(), stage.mapped(), bytes.size());
}

void Buffer::zero() {
  run_once(*device_, [&](VkCommandBuffer commands) {
    device_->api().CmdFillBuffer(commands, buffer_, 0, VK_WHOLE_SIZE, 0);
  });
}

}  // namespace sluice::backend::vulkan
