// Weights on the device, as their file has them: formats are decoded where they are multiplied. Vectors have
// a copy in float32 besides.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "backend/vulkan/device.h"
#include "backend/vulkan/kernels.h"
#include "program/backend.h"

namespace sluice::backend::vulkan {

class Weights : public program::WeightSet {
 public:
  Weights(std::shared_ptr<const Device> device, std::span<const program::Source> sources,
          const program::Progress& progress);
  int64_t bytes() const override;
  /// What a program's weights take.
  static std::vector<program::PackedWeight> held(const program::Program& program);

  /// A stretch of a buffer that a shader sees.
  struct Part {
    VkBuffer buffer = nullptr;
    VkDeviceSize at = 0, bytes = 0;
  };
  /// Of a weight whose bytes lie there in the file.
  Part part(const std::byte* file, bool vector) const;
  /// All of the buffer that it lies in.
  Part whole(const std::byte* file) const;
  const Device& device() const { return *device_; }

 private:
  struct Place {
    size_t arena = 0;
    int64_t at = 0, bytes = 0, vector_at = 0, vector_bytes = 0;
  };
  std::shared_ptr<const Device> device_;
  std::vector<Buffer> arenas_;
  std::map<const std::byte*, Place> places_;
};

}  // namespace sluice::backend::vulkan
