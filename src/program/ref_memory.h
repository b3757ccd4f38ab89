// The memory in which references (the plain-loop meanings of ops) run: one buffer a tensor, float32
// throughout. Made for being right and for tests; nothing here is quick.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "program/backend.h"
#include "program/program.h"

namespace sluice::program {

class RefMemory {
 public:
  /// Every float starts as NaN, so that a value read before it was written shows.
  /// halves: caches of F16 keep halves; otherwise float32 stands for them.
  RefMemory(const Program& program, const WeightBytes& weights, const CompileOptions& options,
            bool halves = false);

  const Program& program() const { return program_; }

  /// One row of one head of an activation: `columns` floats (ints).
  float* row(TensorId id, int64_t row, int64_t head = 0);
  int32_t* int_row(TensorId id, int64_t row, int64_t head = 0);
  /// Decodes one row of a weight into out [columns].
  void weight_row(TensorId id, int64_t matrix, int64_t row, float* out) const;
  /// One row of a paged cache.
  float* cache_row(TensorId cache, int64_t layer, int64_t slot);
  /// One of the rows that a slot of a state has for a layer.
  float* state_row(TensorId state, int64_t layer, int64_t slot, int64_t row);
  /// Gives a row that was written the numbers that the cache's type keeps of it.
  void round_cache_row(TensorId cache, int64_t layer, int64_t slot);
  int64_t bytes() const;
  /// What bytes() would be, by activations and caches.
  static MemoryNeeds needs(const Program& program, const CompileOptions& options);

 private:
  const Program& program_;
  const WeightBytes& weights_;
  bool halves_;
  std::vector<std::vector<float>> floats_;  // by storage TensorId; of caches, too
  std::vector<std::vector<int32_t>> ints_;
  std::vector<std::byte> rounded_;  ///< a cache row in its type
};

/// Sum of products in double: a reference's rounding must not be what a comparison sees.
float ref_dot(const float* a, const float* b, int64_t count);

}  // namespace sluice::program
