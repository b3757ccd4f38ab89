#include "backend/cuda/host/architecture.h"

#include <algorithm>

#include "backend/cuda/host/on_device.h"
#include "backend/cuda/host/sm_share.h"

namespace sluice::backend::cuda {
namespace {

/// Any kernel, to ask what code the device runs: all are compiled for the same architectures.
__global__ void asked_for_version() {}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

/// What the code was compiled for that the current device runs: others may run other code.
int compiled_for() {
  cudaFuncAttributes attributes{};
  check(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(asked_for_version)));
  return attributes.ptxVersion;
}

}  // namespace

int architecture_of(int device) {
  static PerDevice<int> compiled;
  const OnDevice on(device);
  return std::min(compiled.of_current(compiled_for),
                  10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
                      attribute(cudaDevAttrComputeCapabilityMinor, device));
}

int current_sm_count() {
  static PerDevice<int> sm_count;
  return sm_count.of_current([] { return sm_count_of(current_device()); });
}

Sizes sizes_on(int device) {
  return {.architecture = architecture_of(device), .sm_count = sm_count_of(device)};
}

}  // namespace sluice::backend::cuda
