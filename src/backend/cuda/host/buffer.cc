#include "backend/cuda/host/buffer.h"

#include "backend/cuda/host/cuda_check.h"

namespace sluice::backend::cuda {

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  if (bytes > 0) allocate_device(data_, bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) cudaFree(data_);
}

}  // namespace sluice::backend::cuda
