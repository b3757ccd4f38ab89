#include "backend/cuda/buffer.h"

#include "backend/cuda/cuda_check.h"

namespace sluice::backend::cuda {

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  if (bytes > 0) allocate_device(data_, bytes);
}

Buffer::~Buffer() {
  if (data_ != nullptr) cudaFree(data_);
}

}  // namespace sluice::backend::cuda
