#include "backend/vulkan/pipelines.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <future>
#include <span>

#include "base/error.h"
#include "base/file.h"

namespace sluice::backend::vulkan {
namespace {

namespace code {
#include <vulkan_shaders/all.inc>  // made by cmake/vulkan.cmake: a constant array of words a shader
}

std::span<const uint32_t> code_of(Shader shader, bool dot4) {
  if (dot4 && shader == Shader::product) return code::product_dot4;
  if (dot4 && shader == Shader::down) return code::down_dot4;
#define SLUICE_VK_CASE(name) \
  case Shader::name: return code::name;
  switch (shader) { SLUICE_VK_SHADERS(SLUICE_VK_CASE) }
#undef SLUICE_VK_CASE
  return {};
}

/// "vulkan-10de-2330-....bin": a driver reads its own of the same version alone, by a header inside.
std::string file_name(const DeviceInfo& info) {
  std::string name = "vulkan-" + info.driver + ".bin";
  for (char& c : name) {
    if (c == ':' || c == ' ') c = '-';
  }
  return name;
}

}  // namespace

const char* name_of(Shader shader) {
#define SLUICE_VK_CASE(name) \
  case Shader::name: return #name;
  switch (shader) { SLUICE_VK_SHADERS(SLUICE_VK_CASE) }
#undef SLUICE_VK_CASE
  return "";
}

Pipelines::Pipelines(const Device& device, const std::string& cache_folder) : device_(device) {
  std::array<VkDescriptorSetLayoutBinding, kBindings> bindings{};
  for (uint32_t i = 0; i < kBindings; ++i)
    bindings[i] = {i, VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, 1, VK_SHADER_STAGE_COMPUTE_BIT, nullptr};
  VkDescriptorSetLayoutCreateInfo sets{VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO};
  sets.bindingCount = kBindings, sets.pBindings = bindings.data();
  const DeviceApi& api = device.api();
  check(api.CreateDescriptorSetLayout(device.handle(), &sets, nullptr, &set_layout_), "a layout");
  const VkPushConstantRange params{VK_SHADER_STAGE_COMPUTE_BIT, 0, kMostParams * sizeof(uint32_t)};
  VkPipelineLayoutCreateInfo layout{VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO};
  layout.setLayoutCount = 1, layout.pSetLayouts = &set_layout_;
  layout.pushConstantRangeCount = 1, layout.pPushConstantRanges = &params;
  check(api.CreatePipelineLayout(device.handle(), &layout, nullptr, &layout_), "a layout");
  std::string kept;
  std::error_code error;
  if (!cache_folder.empty()) cache_path_ = cache_folder + "/" + file_name(device.info());
  if (std::filesystem::is_regular_file(cache_path_, error)) kept = read_file(cache_path_);
  VkPipelineCacheCreateInfo cache{VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO};
  cache.initialDataSize = kept.size(), cache.pInitialData = kept.data();
  check(api.CreatePipelineCache(device.handle(), &cache, nullptr, &cache_), "a cache of pipelines");
  kept_bytes_ = kept.size();
}

Pipelines::~Pipelines() {
  const DeviceApi& api = device_.api();
  size_t bytes = 0;
  if (!cache_path_.empty() && !known_.empty() &&
      api.GetPipelineCacheData(device_.handle(), cache_, &bytes, nullptr) == VK_SUCCESS &&
      bytes > kept_bytes_) {
    std::vector<std::byte> data(bytes);
    try {  // it costs time next time, nothing else
      if (api.GetPipelineCacheData(device_.handle(), cache_, &bytes, data.data()) == VK_SUCCESS) {
        std::filesystem::create_directories(std::filesystem::path(cache_path_).parent_path());
        write_file(cache_path_, {data.data(), bytes});
      }
    } catch (const std::exception&) {
    }
  }
  for (const auto& [key, pipeline] : known_) api.DestroyPipeline(device_.handle(), pipeline, nullptr);
  api.DestroyPipelineCache(device_.handle(), cache_, nullptr);
  api.DestroyPipelineLayout(device_.handle(), layout_, nullptr);
  api.DestroyDescriptorSetLayout(device_.handle(), set_layout_, nullptr);
}

void Pipelines::make(const std::set<Key>& keys) {
  std::vector<std::pair<Key, std::future<VkPipeline>>> made;
  for (const Key& key : keys) {
    if (!known_.contains(key))
      made.emplace_back(key, std::async(std::launch::async, [&] { return made_of(key); }));
  }
  for (auto& [key, pipeline] : made) known_[key] = pipeline.get();
}

VkPipeline Pipelines::get(Shader shader, const std::vector<uint32_t>& constants) {
  const Key key{shader, constants};
  make({key});
  return known_.at(key);
}

VkPipeline Pipelines::made_of(const Key& key) const {
  const auto& [shader, constants] = key;
  const DeviceApi& api = device_.api();
  const auto words = code_of(shader, device_.info().dot4);
  VkShaderModuleCreateInfo create{VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO};
  create.codeSize = words.size_bytes(), create.pCode = words.data();
  VkShaderModule module = nullptr;
  check(api.CreateShaderModule(device_.handle(), &create, nullptr, &module), name_of(shader));
  std::vector<VkSpecializationMapEntry> entries;
  for (uint32_t i = 0; i < constants.size(); ++i)
    entries.push_back({i, i * static_cast<uint32_t>(sizeof(uint32_t)), sizeof(uint32_t)});
  const VkSpecializationInfo specialization{static_cast<uint32_t>(entries.size()), entries.data(),
                                            constants.size() * sizeof(uint32_t), constants.data()};
  VkComputePipelineCreateInfo info{VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO};
  info.stage = {VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO};
  info.stage.stage = VK_SHADER_STAGE_COMPUTE_BIT, info.stage.module = module, info.stage.pName = "main";
  info.stage.pSpecializationInfo = &specialization;
  info.layout = layout_;
  VkPipeline pipeline = nullptr;
  const VkResult result = api.CreateComputePipelines(device_.handle(), cache_, 1, &info, nullptr, &pipeline);
  api.DestroyShaderModule(device_.handle(), module, nullptr);
  check(result, name_of(shader));
  return pipeline;
}

}  // namespace sluice::backend::vulkan
