// Rows as codes of eight bits (gemv/code_rows.h): with a norm a thread block a row, without one a quad a
// warp.
#include "backend/cuda/gemv/code_rows.h"

#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
/// Quads of a warp, held in registers.
constexpr int quads_for(bool normed) { return normed ? 4 : 1; }
static_assert(kNormedInCodes == kWarps * quads_for(true) * int8_mma::kQuad);

template <bool kNormed>
__global__ void __launch_bounds__(kThreads)
    code_rows_kernel(const Timestamps timestamps, const __grid_constant__ CodeRows p) {
  constexpr int kQuads = quads_for(kNormed);
  __shared__ float partial[kWarps];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.x), quads = p.in.columns / int8_mma::kQuad;
  const auto quad_of = [&](int i) { return (static_cast<int>(blockIdx.y) * kQuads + i) * kWarps + warp; };
  const auto place = [&](int i) { return min(quad_of(i), quads - 1) * 32 + lane; };
  float4 v[kQuads], by[kQuads];
#pragma unroll
  for (int i = 0; i < kQuads; ++i)
    by[i] = kNormed ? __ldg(reinterpret_cast<const float4*>(p.norm) + place(i)) : float4{1, 1, 1, 1};
  pdl.wait();
  if (row >= *p.rows) return;
#pragma unroll
  for (int i = 0; i < kQuads; ++i) v[i] = __ldcg(reinterpret_cast<const float4*>(p.in(row)) + place(i));
  float factor = 1;
  if constexpr (kNormed) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      if (quad_of(i) < quads)
        squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
    }
    squares = lane_sum(squares);
    if (lane == 0) partial[warp] = squares;
    __syncthreads();
    float all = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) all += partial[w];
    factor = 1.0f / sqrtf(all / static_cast<float>(p.in.columns) + p.epsilon);
  }
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    if (quad_of(i) >= quads) break;
    const float4 n{v[i].x * by[i].x * factor, v[i].y * by[i].y * factor, v[i].z * by[i].z * factor,
                   v[i].w * by[i].w * factor};
    int8_mma::store_codes(n, p.codes + int64_t{row} * p.token.pitch, p.token, quad_of(i));
  }
}

}  // namespace

void code_rows(const CodeRows& rows, const Context& context) {
  const bool normed = rows.norm != nullptr;
  const int of_block = quads_for(normed) * kWarps * int8_mma::kQuad;
  launch(context, normed ? code_rows_kernel<true> : code_rows_kernel<false>,
         {dim3(static_cast<unsigned>(context.step_rows),
               static_cast<unsigned>((rows.in.columns + of_block - 1) / of_block)),
          dim3(kThreads)},
         rows);
}

}  // namespace sluice::backend::cuda
