#include "backend/cuda/host/cuda_check.h"

#include <string>

#include "base/error.h"

namespace sluice::backend::cuda {

void check(cudaError_t result, const char* file, int line) {
  if (result == cudaSuccess) return;
  const std::string path = file;
  const size_t at = path.rfind("/src/");
  fail("CUDA: {} ({}:{})", cudaGetErrorString(result), at == std::string::npos ? path : path.substr(at + 1),
       line);
}

}  // namespace sluice::backend::cuda
