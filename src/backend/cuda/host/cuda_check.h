// Every CUDA call's answer is looked at: what fails is an Error that says what and where.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace sluice::backend::cuda {

/// Throws Error "CUDA: WHY (FILE:LINE)" unless the call succeeded.
void check(cudaError_t result, const char* file = __builtin_FILE(), int line = __builtin_LINE());

/// Device memory, and host memory that the device copies from and to by itself.
template <typename T>
void allocate_device(T*& at, int64_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, static_cast<size_t>(bytes)));
  at = static_cast<T*>(memory);
}
template <typename T>
void allocate_pinned(T*& at, int64_t bytes) {
  void* memory = nullptr;
  check(cudaMallocHost(&memory, static_cast<size_t>(bytes)));
  at = static_cast<T*>(memory);
}

}  // namespace sluice::backend::cuda
