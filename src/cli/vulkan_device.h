// The Vulkan backend where this program was built with one. It is part of the program; Vulkan itself is found
// when it is asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program/backend.h"

namespace sluice::cli {

/// On a device, by its number. Null, and why in one line, where it was not built or there is no such device.
std::unique_ptr<program::Backend> make_vulkan(int device, std::string& why);

/// A device: what it is in words, and facts by name.
struct VulkanView {
  std::string name;
  std::vector<std::pair<std::string, std::string>> facts;
  std::vector<std::string> features;
  bool usable = true;
};
std::vector<VulkanView> vulkan_devices(std::string& why);

}  // namespace sluice::cli
