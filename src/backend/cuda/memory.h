// Where an executable's data lies on the device: packed weights, one arena for all activations, the paged
// cache, a step's data, scratch. Hands out the plain structs of device.h.
#pragma once

#include <map>
#include <memory>
#include <vector>

#include "backend/cuda/device.h"
#include "program/backend.h"

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

class Memory {
 public:
  /// program: what runs at most, all expansions included; its activations' places follow from it.
  Memory(const program::Program& program, const program::WeightBytes& weights,
         const program::CompileOptions& options, int64_t scratch_bytes, int expansion_length);

  const program::Program& program() const { return program_; }
  /// A weight that is multiplied, packed.
  Matrix matrix(program::TensorId id) const;
  /// A weight of few numbers (norms, biases) as float32; null for kNoTensor.
  const float* vector(program::TensorId id) const;
  Rows<float> rows(program::TensorId id) const { return view<float>(id); }
  Rows<int32_t> int_rows(program::TensorId id) const { return view<int32_t>(id); }
  Cache cache() const;
  char* scratch() const { return scratch_.data(); }
  int64_t bytes() const;

  static program::MemoryNeeds needs(const program::Program& program, const program::CompileOptions& options,
                                    int64_t scratch_bytes, int expansion_length);

 private:
  template <typename T>
  Rows<T> view(program::TensorId id) const;

  const program::Program& program_;
  program::MemoryPlan plan_;
  std::vector<Buffer> packed_;                   // by TensorId of the storage
  std::map<program::TensorId, Buffer> vectors_;  // by TensorId
  Buffer arena_, cache_, scratch_;
};

}  // namespace sluice::backend::cuda
