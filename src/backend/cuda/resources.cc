#include "backend/cuda/resources.h"

#include <fmt/format.h>

#include "backend/cuda/cuda_check.h"

namespace sluice::backend::cuda {

void LaunchLog::add(const void* kernel, int64_t blocks, int threads, int64_t shared_bytes) {
  cudaFuncAttributes attributes = {};
  check(cudaFuncGetAttributes(&attributes, kernel));
  LaunchResources launch;
  launch.blocks = blocks;
  launch.threads = threads;
  launch.registers = attributes.numRegs;
  launch.shared_bytes = static_cast<int64_t>(attributes.sharedSizeBytes) + shared_bytes;
  launch.spilled_bytes = static_cast<int64_t>(attributes.localSizeBytes);
  check(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&launch.blocks_at_once, kernel, threads,
                                                      static_cast<size_t>(shared_bytes)));
  int device = 0, most_threads = 0;
  check(cudaGetDevice(&device));
  check(cudaDeviceGetAttribute(&most_threads, cudaDevAttrMaxThreadsPerMultiProcessor, device));
  launch.occupancy = static_cast<double>(launch.blocks_at_once) * threads / most_threads;
  list_.push_back(launch);
}

std::string LaunchResources::text() const {
  std::string text = fmt::format("{} blocks x {} threads, {} registers, {:.1f} KB shared", blocks, threads,
                                 registers, static_cast<double>(shared_bytes) / 1024);
  if (spilled_bytes > 0) text += fmt::format(", {} B spilled", spilled_bytes);
  return text + fmt::format(", {} at once ({:.0f} % of the threads)", blocks_at_once, 100 * occupancy);
}

}  // namespace sluice::backend::cuda
