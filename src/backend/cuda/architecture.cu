#include "backend/cuda/architecture.h"

#include <algorithm>

#include "backend/cuda/cuda_check.h"

namespace sluice::backend::cuda {
namespace {

/// Any kernel, to ask what code the device runs: all are compiled for the same architectures.
__global__ void asked_for_version() {}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// What the code was compiled for that the current device runs.
int compiled_for() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(asked_for_version)));
  return attributes.ptxVersion;
}

}  // namespace

int architecture_of(int device) {
  static const int compiled = compiled_for();
  return std::min(compiled, 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                                attribute(cudaDevAttrComputeCapabilityMinor, device));
}

Sizes sizes_on(int device) {
  return {.architecture = architecture_of(device),
          .processors = attribute(cudaDevAttrMultiProcessorCount, device)};
}

}  // namespace sluice::backend::cuda
