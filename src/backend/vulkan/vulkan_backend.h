// Every GPU with a Vulkan driver, and those of Apple through MoltenVK.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program/backend.h"

namespace sluice::backend {

struct VulkanOptions {
  int device = 0;            ///< its number, as Vulkan's loader counts them
  std::string cache_folder;  ///< where what drivers make of kernels is kept; empty: nowhere
  bool staged = false;       ///< copies go through the host's memory even where it could write the device's
  bool dot4 = true;          ///< four bytes are multiplied at a time where the device can
};

/// Null, and why in one line, where there is no such device to use.
std::unique_ptr<program::Backend> make_vulkan_backend(const VulkanOptions& options, std::string& why);

/// A device, as owners are told of it.
struct VulkanDevice {
  std::string name, kind, driver, version, lacks;
  int64_t memory_bytes = 0, most_bound_bytes = 0, shared_bytes = 0;
  bool unified = false;
  uint32_t subgroup_size = 0;
  std::vector<std::string> features;
};
std::vector<VulkanDevice> list_vulkan_devices(std::string& why);

}  // namespace sluice::backend
