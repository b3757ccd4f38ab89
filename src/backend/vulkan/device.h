// Vulkan's devices: what they are, one that is in use, and memory on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "backend/vulkan/api.h"

namespace sluice::backend::vulkan {

/// A driver's view of a device, as owners see it and as kernels are chosen by.
struct DeviceInfo {
  std::string name, kind, driver;  ///< kind: "discrete GPU"
  uint32_t api_version = 0;
  int64_t memory_bytes = 0;  ///< of its largest heap
  bool unified = false;      ///< its memory is the host's, too
  uint32_t subgroup_size = 0;
  int64_t most_bound_bytes = 0;      ///< of one buffer that a kernel sees
  int64_t most_allocated_bytes = 0;  ///< at once
  int64_t shared_bytes = 0;          ///< of a workgroup
  int64_t offset_alignment = 1;      ///< of a buffer's part that a kernel sees
  double timestamp_ns = 0;           ///< of a tick; 0: it has no clock
  bool dot4 = false;                 ///< kernels may multiply four bytes at a time
  std::vector<std::string> features;
  std::string lacks;  ///< why kernels cannot run on it; empty: they can
};

class Instance;

/// All devices; empty, and why, where there are none.
std::vector<DeviceInfo> list_devices(std::string& why);

/// A device in use, with its one queue.
class Device {
 public:
  /// staged: weights go by way of a staging buffer even where the device's memory is the host's.
  /// dot4: kernels multiply four bytes at a time where the device can.
  explicit Device(int number, bool staged = false, bool dot4 = true);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const DeviceInfo& info() const { return info_; }
  const DeviceApi& api() const { return api_; }
  VkDevice handle() const { return device_; }
  VkCommandPool pool() const { return pool_; }
  /// Runs a command buffer and waits for its end. One at a time. usual_ns: how long it took before; 0:
  /// unknown.
  void run(VkCommandBuffer commands, int64_t usual_ns = 0) const;
  VkCommandBuffer new_commands() const;
  void free_commands(VkCommandBuffer commands) const;
  /// What kernels wrote before it is there for the kernels after it.
  void record_barrier(VkCommandBuffer commands) const;
  /// All that was written before it is there for all that comes after it, and for the host once the fence is.
  void record_full_barrier(VkCommandBuffer commands) const;
  /// Bytes of its memory that nobody has.
  int64_t available_bytes() const;

  /// Whether the host writes the device's memory itself.
  bool writes_directly() const { return !staged_ && info_.unified; }

  enum class Place : uint8_t {
    Device,    ///< kernels are quick there; mapped where memory is unified
    Written,   ///< the host writes, kernels read
    ReadBack,  ///< kernels write, the host reads
  };
  uint32_t memory_type(Place place, uint32_t allowed) const;
  VkMemoryPropertyFlags flags_of(uint32_t memory_type) const {
    return memory_.memoryTypes[memory_type].propertyFlags;
  }

 private:
  void wait(int64_t usual_ns) const;

  std::shared_ptr<Instance> instance_;
  VkPhysicalDevice physical_ = nullptr;
  DeviceInfo info_;
  bool staged_;
  bool has_budget_ = false;
  VkPhysicalDeviceMemoryProperties memory_{};
  VkDevice device_ = nullptr;
  DeviceApi api_{};
  VkQueue queue_ = nullptr;
  VkCommandPool pool_ = nullptr;
  VkFence fence_ = nullptr;
  mutable std::mutex mutex_;  // of the queue, its commands and the fence
};

/// What is copied by way of the host's memory goes in pieces of so many bytes.
inline constexpr int64_t kStageBytes = int64_t{64} << 20;

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Device& device, int64_t bytes, Device::Place place);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept;

  VkBuffer handle() const { return buffer_; }
  int64_t bytes() const { return bytes_; }
  /// Its bytes in the host's memory; null where the host does not see them.
  std::byte* mapped() const { return mapped_; }
  /// Copies, and waits; by way of a stage where the host does not see it: this one, or one of its own.
  void write(int64_t at, std::span<const std::byte> bytes, const Buffer* stage = nullptr);
  void read(int64_t at, std::span<std::byte> bytes) const;
  void zero();

 private:
  const Device* device_ = nullptr;
  VkBuffer buffer_ = nullptr;
  VkDeviceMemory memory_ = nullptr;
  std::byte* mapped_ = nullptr;
  bool is_read_quickly_ = false;  ///< by the host, where it is mapped
  int64_t bytes_ = 0;
};

}  // namespace sluice::backend::vulkan
