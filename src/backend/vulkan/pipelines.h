// Shaders as pipelines of a device, each made when it is wanted first. What the driver made of them is kept
// in a file for the next time.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "backend/vulkan/device.h"

namespace sluice::backend::vulkan {

#define SLUICE_VK_SHADERS(F) \
  F(attend)                  \
  F(attend_merge)            \
  F(attend_tiled)            \
  F(causal_conv)             \
  F(codes)                   \
  F(delta_rule)              \
  F(down)                    \
  F(elementwise)             \
  F(group)                   \
  F(kv_append)               \
  F(latent_append)           \
  F(top_k)                   \
  F(product)                 \
  F(read_all)                \
  F(rms_norm)                \
  F(rope)                    \
  F(route)                   \
  F(tiled)                   \
  F(tiled_dot4)              \
  F(transposed)

#define SLUICE_VK_ENUM(name) name,
enum class Shader : uint8_t { SLUICE_VK_SHADERS(SLUICE_VK_ENUM) };
#undef SLUICE_VK_ENUM

const char* name_of(Shader shader);

/// Buffers that a shader sees, in the order of shaders/common.glsl.
inline constexpr uint32_t kBindings = 12;
/// Words of parameters, that every device has room for.
inline constexpr uint32_t kMostParams = 32;

class Pipelines {
 public:
  /// cache_folder: where what drivers made is kept; empty: nowhere.
  Pipelines(const Device& device, const std::string& cache_folder);
  ~Pipelines();
  Pipelines(const Pipelines&) = delete;
  Pipelines& operator=(const Pipelines&) = delete;

  VkDescriptorSetLayout set_layout() const { return set_layout_; }
  VkPipelineLayout layout() const { return layout_; }
  /// A shader, and its constants by id.
  using Key = std::pair<Shader, std::vector<uint32_t>>;
  /// Makes those that are missing, side by side: a driver may take a third of a second for each.
  void make(const std::set<Key>& keys);
  VkPipeline get(Shader shader, const std::vector<uint32_t>& constants);

 private:
  VkPipeline made_of(const Key& key) const;

  const Device& device_;
  std::string cache_path_;
  VkDescriptorSetLayout set_layout_ = nullptr;
  VkPipelineLayout layout_ = nullptr;
  VkPipelineCache cache_ = nullptr;
  std::map<Key, VkPipeline> known_;
  size_t kept_bytes_ = 0;
};

}  // namespace sluice::backend::vulkan
