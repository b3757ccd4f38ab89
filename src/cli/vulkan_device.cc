#include "cli/vulkan_device.h"

#ifdef SLUICE_HAS_VULKAN

#include <fmt/format.h>

#include <filesystem>

#include "backend/vulkan/vulkan_backend.h"
#include "cli/output.h"
#include "cli/tuning_file.h"

namespace sluice::cli {

std::unique_ptr<program::Backend> make_vulkan(int device, std::string& why) {
  // What drivers make of kernels lies beside the tuned values.
  const std::string tuning = tuning_path();
  const std::string folder = tuning.empty() ? "" : std::filesystem::path(tuning).parent_path().string();
  return backend::make_vulkan_backend({.device = device, .cache_folder = folder}, why);
}

std::vector<VulkanView> vulkan_devices(std::string& why) {
  std::vector<VulkanView> views;
  for (const backend::VulkanDevice& device : backend::list_vulkan_devices(why)) {
    VulkanView view{.name = device.name, .features = device.features, .usable = device.lacks.empty()};
    view.facts = {{"kind", device.kind},
                  {"driver", device.driver},
                  {"vulkan", device.version},
                  {"memory", short_count(static_cast<double>(device.memory_bytes), "B") +
                                 (device.unified ? ", written by the host directly" : "")},
                  {"a kernel's buffer", short_count(static_cast<double>(device.most_bound_bytes), "B")},
                  {"shared memory", short_count(static_cast<double>(device.shared_bytes), "B")},
                  {"subgroups", std::to_string(device.subgroup_size)}};
    if (!device.lacks.empty()) view.facts.emplace_back("lacks", device.lacks);
    views.push_back(std::move(view));
  }
  return views;
}

}  // namespace sluice::cli

#else

namespace sluice::cli {

namespace {
constexpr const char* kNotBuilt =
    "this build has no Vulkan backend (libvulkan-dev and glslang-tools were not there)";
}

std::unique_ptr<program::Backend> make_vulkan(int, std::string& why) {
  why = kNotBuilt;
  return nullptr;
}

std::vector<VulkanView> vulkan_devices(std::string& why) {
  why = kNotBuilt;
  return {};
}

}  // namespace sluice::cli

#endif
