// Where an executable's data lies: one arena for all activations, the paged latent cache, a scratch a worker.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "program/backend.h"
#include "program/program.h"

namespace sluice::backend::cpu {

/// Zeroed pages from the system: a large cache costs memory only where it is written.
class Pages {
 public:
  /// Throws Error when the system refuses.
  explicit Pages(int64_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

/// A weight as kernels read it: row n of matrix m begins at data + m * matrix_bytes + n * row_bytes.
struct Weight {
  const std::byte* data;
  int64_t matrix_bytes, row_bytes;
  int64_t matrices, rows, columns;
  void (*decode)(const std::byte*, float*, int64_t);

  void decode_row(int64_t matrix, int64_t row, float* out) const {
    decode(data + matrix * matrix_bytes + row * row_bytes, out, columns);
  }
};

/// An activation as kernels read and write it.
template <typename T>
struct Rows {
  T* data;
  int64_t row_stride, head_stride;
  int64_t heads, columns;

  T* operator()(int64_t row, int64_t head = 0) const { return data + row * row_stride + head * head_stride; }
};

/// The latent cache: rows of `columns` numbers in the cache's own format.
struct Cache {
  std::byte* data;
  int64_t layers, columns, row_bytes;
  const quant::TypeInfo* type;

  std::byte* row(int64_t layer, int64_t slot) const {
    const int64_t page = slot / program::kPageRows, row = slot % program::kPageRows;
    return data + ((page * layers + layer) * program::kPageRows + row) * row_bytes;
  }
};

class Memory {
 public:
  Memory(const program::Program& program, const program::WeightBytes& weights,
         const program::CompileOptions& options, int workers, int64_t scratch_floats);

  Weight weight(program::TensorId id) const;
  Rows<float> rows(program::TensorId id) const;
  Rows<int32_t> int_rows(program::TensorId id) const;
  Cache cache() const;
  /// This worker's scratch, [scratch_floats].
  float* scratch(int worker) const;
  const program::MemoryPlan& plan() const { return plan_; }
  int64_t bytes() const { return arena_.bytes() + cache_.bytes() + scratch_.bytes(); }

 private:
  const program::Program& program_;
  const program::WeightBytes& weights_;
  program::MemoryPlan plan_;
  int64_t scratch_bytes_;
  Pages arena_, cache_, scratch_;
};

}  // namespace sluice::backend::cpu
