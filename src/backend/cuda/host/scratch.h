// Pieces of a stretch of device memory: of a launch's scratch, or of a form.
#pragma once

#include <cstdint>

namespace sluice::backend::cuda {

/// Hands out pieces of a scratch buffer; without one it counts.
class Scratch {
 public:
  explicit Scratch(char* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    const int64_t at = bytes_;
    bytes_ += (count * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
    return base_ == nullptr ? nullptr : reinterpret_cast<T*>(base_ + at);
  }
  int64_t bytes() const { return bytes_; }

 private:
  char* base_;
  int64_t bytes_ = 0;
};

}  // namespace sluice::backend::cuda
