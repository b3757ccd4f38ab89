// Rows of a head's matrix that a thread block multiplies with one row of activations: some lanes a row, whose
// first blocks are asked for before the activations are there.
#pragma once

#include "backend/cuda/prim/any_type.cuh"

namespace sluice::backend::cuda {

inline constexpr int kRowLanes = 8;

/// row_of(i) is the i-th's flat row. One: how a block is held (prim/any_type.cuh); kBlocks: of a
/// lane that are asked for at once.
template <typename One, int kThreads, int kBlocks, typename RowOf>
struct LaneRows {
  static constexpr int kAtOnce = kThreads / kRowLanes;  ///< rows of a pass
  const Matrix& m;
  const int count;
  const RowOf row_of;
  const RowShape shape;
  RowAhead<One, kBlocks> ahead;

  __device__ LaneRows(const Matrix& matrix, int rows, RowOf of)
      : m(matrix), count(rows), row_of(of), shape{matrix.columns / 32, kRowLanes, 0} {}
  __device__ int first_block(int i) const { return row_of(min(i, count - 1)) * shape.blocks; }
  /// Asks for the first rows.
  __device__ void ask() { ahead.ask(m, first_block(static_cast<int>(threadIdx.x) / kRowLanes), shape); }
  /// put(row of these, product) by the first lane of each row.
  template <typename Put>
  __device__ void multiply(const Activations& x, Put put) {
#pragma unroll 1
    for (int base = 0; base < count; base += kAtOnce) {
      const int i = base + static_cast<int>(threadIdx.x) / kRowLanes;
      if (base > 0) ahead.ask(m, first_block(i), shape);
      const float product = ahead.times(m, first_block(i), x, shape);
      if (i < count && shape.lane() == 0) put(i, product);
    }
  }
};
template <typename One, int kThreads, int kBlocks = 3, typename RowOf>
__device__ inline LaneRows<One, kThreads, kBlocks, RowOf> lane_rows(const Matrix& matrix, int rows,
                                                                    RowOf of) {
  return {matrix, rows, of};
}

}  // namespace sluice::backend::cuda
