// Rows of a head's matrix that a block of threads multiplies with one row of activations: eight lanes a row.
#pragma once

#include "backend/cuda/prim/any_type.cuh"
#include "backend/cuda/prim/prefetch.cuh"

namespace sluice::backend::cuda {

inline constexpr int kHeadThreads = 256;  ///< of a block
inline constexpr int kHeadLanes = 8;      ///< of a row

/// This block's rows of a matrix. One: how a block is held (prim/any_type.cuh).
template <typename One>
struct HeadRows {
  const Matrix& m;
  int first, rows;  // flat row of the first, how many
  RowShape shape;
  AskedOf<One> asked;

  __device__ HeadRows(const Matrix& matrix, int64_t first_row, int count)
      : m(matrix),
        first(static_cast<int>(first_row)),
        rows(count),
        shape{matrix.columns / 32, kHeadLanes, count} {}
  __device__ int row(int pass) const {
    return pass * (kHeadThreads / kHeadLanes) + static_cast<int>(threadIdx.x) / kHeadLanes;
  }
  __device__ int first_block(int pass) const { return (first + min(row(pass), rows - 1)) * shape.blocks; }
  /// The first blocks of the first pass.
  __device__ void ask() { asked.ask(m, first_block(0), shape.lane(), shape); }
  /// put(row of these, product) by the first lane of each row.
  template <typename Put>
  __device__ void multiply(const Activations& x, Put put) {
    for (int pass = 0; pass * (kHeadThreads / kHeadLanes) < rows; ++pass) {
      float sum = 0;
#pragma unroll 1
      for (int b = shape.lane(); b - shape.lane() < shape.blocks; b += kHeadLanes * AskedOf<One>::kAtOnce) {
        if (pass > 0 || b != shape.lane()) asked.ask(m, first_block(pass), b, shape);
        sum += asked.times(m.type, x, b, shape);
      }
      sum = lane_sum(sum, kHeadLanes);
      if (row(pass) < rows && shape.lane() == 0) put(row(pass), sum);
    }
  }
  __device__ void prefetch() const {
    const int64_t row_bytes = code_bytes(m.type, m.columns);
    prefetch_range(m.codes + first * row_bytes, rows * row_bytes);
  }
};

}  // namespace sluice::backend::cuda
