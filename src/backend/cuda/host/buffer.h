// Device memory with an owner.
#pragma once

#include <cstdint>
#include <utility>

namespace sluice::backend::cuda {

/// Device memory, freed with its owner. Throws Error when there is too little.
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t bytes);
  ~Buffer();
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  char* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  char* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace sluice::backend::cuda
