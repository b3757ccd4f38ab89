// The kernel of products of few rows: weights are streamed once, straight from packed planes.
//
// A block of threads makes the rows' activations for itself in shared memory (the norm included), then every
// warp takes weight rows, dealt round the blocks so that each multiprocessor reads as much. Bound by reading
// weights; in a chain of small products by the way from one kernel's results to the next one's activations
// (about 1.5 us).
#pragma once

#include "backend/cuda/ops/products.cuh"
#include "backend/cuda/prim/dot.cuh"

namespace sluice::backend::cuda::few_products {

template <int kRows, int kOut>
__device__ void run_task(const Args& args, int task, const Activations& x, int64_t first_row, int64_t rows) {
  int p = 0;
  while (task >= args.parts[p].tasks) task -= args.parts[p++].tasks;
  const Part& part = args.parts[p];
  const int n = (task * (32 / part.lanes) + threadIdx.x % 32 / part.lanes) * kOut;
  const int count = min(kOut, part.weight.rows - n), lane = threadIdx.x % part.lanes;
  const Sums<kRows, kOut> sums =
      dot<kRows, kOut, true>(part.weight, part.weight.row(0, n), count, part.lanes, x);
  if (lane != 0) return;
#pragma unroll
  for (int o = 0; o < kOut; ++o) {
    if (o >= count) break;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int64_t row = first_row + r;
      if (row >= rows) break;
      const float add = part.add != nullptr ? __ldcg(part.add + row * part.add_stride + n + o) : 0.0f;
      part.out[row * part.out_stride + n + o] = sums.of[o * kRows + r] + add;
    }
  }
}

template <int kRows, int kOut>
__global__ void __launch_bounds__(kThreads, 2)
    products(const Stamps stamps, const __grid_constant__ Args args) {
  __shared__ float partial[33];
  const Link link(stamps);
  link.wait();
  const Activations x{0, args.columns, args.bytes, args.floats};
  const int64_t rows = args.one_row      ? 1
                       : args.by_outputs ? args.step.header->outputs
                                         : args.step.header->rows;
  const int64_t first_row = int64_t{blockIdx.y} * kRows;
  if (first_row >= rows) return;
  for (int r = 0; r < kRows && first_row + r < rows; ++r) {
    x.fill(r, args.in + (first_row + r) * args.in_stride, args.norm, args.epsilon, partial);
  }
  __syncthreads();
  for (int task = threadIdx.x / 32 * gridDim.x + blockIdx.x; task < args.tasks; task += gridDim.x * kWarps) {
    run_task<kRows, kOut>(args, task, x, first_row, rows);
  }
}

template <int kRows, int kOut>
void start_products(const Context& context, const LaunchShape& shape, const Args& args) {
  launch(context, products<kRows, kOut>, shape, args);
}

}  // namespace sluice::backend::cuda::few_products
