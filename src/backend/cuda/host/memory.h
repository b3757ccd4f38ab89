// Where an executable's data lies on the device: weights (host/weights.h), one arena for all activations, the
// paged caches, a step's data, scratch. Hands out the plain structs of host/device.h.
#pragma once

#include <memory>
#include <vector>

#include "backend/cuda/host/buffer.h"
#include "backend/cuda/host/device.h"
#include "backend/cuda/host/weights.h"
#include "program/backend.h"

namespace sluice::backend::cuda {

class Memory {
 public:
  /// program: what runs at most, all expansions included; its activations' places follow from it. Without
  /// weights nothing is allocated, and all addresses are made up: launchers may look at them, nobody may go
  /// there.
  Memory(const program::Program& program, const program::WeightBytes& files,
         std::shared_ptr<const Weights> weights, const program::CompileOptions& options,
         int64_t scratch_bytes, int expansion_length, const Memory* caches_of);

  const program::Program& program() const { return program_; }
  /// A weight that is multiplied, packed.
  Matrix matrix(program::TensorId id) const;
  /// A weight of few numbers (norms, biases) as float32; null for kNoTensor.
  const float* vector(program::TensorId id) const;
  Rows<float> rows(program::TensorId id) const { return view<float>(id); }
  Rows<int32_t> int_rows(program::TensorId id) const { return view<int32_t>(id); }
  /// A paged cache.
  Cache cache(program::TensorId id) const;
  State state(program::TensorId id) const;
  /// Where the caches lie, in the order of the program's.
  const std::vector<Buffer>& caches() const { return *caches_; }
  char* scratch() const { return scratch_at_; }
  /// But for the weights.
  int64_t bytes() const;

  static program::MemoryNeeds needs(const program::Program& program, const program::CompileOptions& options,
                                    int64_t scratch_bytes, int expansion_length);

 private:
  template <typename T>
  Rows<T> view(program::TensorId id) const;

  const program::Program& program_;
  program::MemoryPlan plan_;
  std::shared_ptr<const Weights> weights_;
  std::vector<Weights::Place> places_;  // of weights, by TensorId of the storage
  Buffer arena_, scratch_;
  std::shared_ptr<std::vector<Buffer>> caches_;  // in the order of the program's
  bool borrows_caches_ = false;
  char *arena_at_, *scratch_at_;
};

}  // namespace sluice::backend::cuda
