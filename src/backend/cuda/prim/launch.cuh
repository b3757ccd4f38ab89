// Starts a kernel as a link of the chain that a step is: with a programmatic dependency where the device has
// that, and as clusters where asked. A kernel's first parameter says where its times go.
#pragma once

#include "backend/cuda/host/cuda_check.h"
#include "backend/cuda/host/kernel.h"
#include "backend/cuda/host/launch_times.h"
#include "backend/cuda/host/resources.h"

namespace sluice::backend::cuda {

struct LaunchShape {
  dim3 grid, block;
  int64_t shared_bytes = 0;
  int cluster = 1;  ///< neighbouring blocks along x that share their shared memory
  /// The launch behind begins as blocks of this one end, not once all of them have begun: what it asks for
  /// early may hold up this one. By measurement alone.
  bool late = false;
};

/// Lets a kernel ask for so much shared memory. Beside what it declares 48 KB need no permission in all.
inline void allow_shared(const void* kernel, int64_t bytes) {
  if (bytes <= 32 * 1024) return;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
}

/// Clusters of such blocks that are on the device at a time; none where one does not fit.
template <typename... Parameters>
int most_clusters(void (*kernel)(Timestamps, Parameters...), const LaunchShape& shape) {
  const auto* const function = reinterpret_cast<const void*>(kernel);
  allow_shared(function, shape.shared_bytes);
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, function, &config));
  return clusters;
}

template <typename... Parameters, typename... Arguments>
void launch(const Context& context, void (*kernel)(Timestamps, Parameters...), const LaunchShape& shape,
            Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = context.stream;
  cudaLaunchAttribute attributes[2];
  unsigned count = 0;
  if (context.uses_pdl && context.architecture >= 90) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  config.attrs = attributes;
  config.numAttrs = count;
  allow_shared(reinterpret_cast<const void*>(kernel), shape.shared_bytes);
  if (context.log != nullptr) {
    const auto blocks = int64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
    const auto threads = static_cast<int>(shape.block.x * shape.block.y * shape.block.z);
    return context.log->add(reinterpret_cast<const void*>(kernel), blocks, threads, shape.shared_bytes);
  }
  Timestamps timestamps = context.times != nullptr ? context.times->next() : Timestamps{};
  timestamps.late = shape.late;
  check(cudaLaunchKernelEx(&config, kernel, timestamps, static_cast<Parameters>(arguments)...));
}

}  // namespace sluice::backend::cuda
