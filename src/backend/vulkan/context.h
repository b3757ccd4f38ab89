// A device with what all executables on it share.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "backend/vulkan/device.h"
#include "backend/vulkan/pipelines.h"

namespace sluice::backend::vulkan {

struct Context {
  Context(int number, bool staged, bool dot4, const std::string& cache_folder);

  std::shared_ptr<const Device> device;
  Pipelines pipelines;
  std::mutex mutex;  ///< of pipelines, which are made when they are wanted
  Buffer tables;
};

}  // namespace sluice::backend::vulkan
