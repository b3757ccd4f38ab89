// matmul of steps of many rows with float32 weights: routers, whose scores decide which experts a row gets
// and are not rounded to halves for that. A thread block takes 16 rows and 64 outputs; its eight warps share
// the columns and add up in their order. A lane has 4 rows x 8 outputs: 128 multiply-adds for 12 loads of 16
// bytes, most of them from L1. 64 outputs of 2,048 columns: 0.27 MFLOP a row, bound by the scalar units.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTileRows = 16, kTileOutputs = 64, kLaneRows = 4, kLaneOutputs = 8;

struct Args {
  Rows<float> in, out;
  const float* weight;
  int32_t outputs, columns;
  const int32_t* rows;
};

__global__ void __launch_bounds__(kThreads) multiply_f32(const Timestamps timestamps, const Args p) {
  __shared__ float sums[kWarps][kTileRows][kTileOutputs];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = *p.rows;
  const int first_row = static_cast<int>(blockIdx.x) * kTileRows,
            first_output = static_cast<int>(blockIdx.y) * kTileOutputs;
  if (first_row >= rows) return;
  // Neighbouring lanes have neighbouring outputs: lane's are lane % 8 + 8 i; its rows lane / 8 + 4 i.
  const float4 *x[kLaneRows], *w[kLaneOutputs];
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
    x[i] = reinterpret_cast<const float4*>(p.in(min(first_row + lane / 8 + 4 * i, rows - 1)));
  }
#pragma unroll
  for (int i = 0; i < kLaneOutputs; ++i) {
    const int64_t n = min(first_output + lane % 8 + 8 * i, p.outputs - 1);
    w[i] = reinterpret_cast<const float4*>(p.weight + n * p.columns);
  }
  const int fours = p.columns / 4, slice = (fours + kWarps - 1) / kWarps;
  float sum[kLaneRows][kLaneOutputs] = {};
#pragma unroll 2
  for (int c = warp * slice; c < min((warp + 1) * slice, fours); ++c) {
    float4 a[kLaneRows];
#pragma unroll
    for (int i = 0; i < kLaneRows; ++i) a[i] = __ldg(x[i] + c);
#pragma unroll
    for (int j = 0; j < kLaneOutputs; ++j) {
      const float4 b = __ldg(w[j] + c);
#pragma unroll
      for (int i = 0; i < kLaneRows; ++i) {
        sum[i][j] += a[i].x * b.x;
        sum[i][j] += a[i].y * b.y;
        sum[i][j] += a[i].z * b.z;
        sum[i][j] += a[i].w * b.w;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kLaneRows; ++i) {
#pragma unroll
    for (int j = 0; j < kLaneOutputs; ++j) sums[warp][lane / 8 + 4 * i][lane % 8 + 8 * j] = sum[i][j];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kTileRows * kTileOutputs; i += kThreads) {
    const int r = first_row + i / kTileOutputs, n = first_output + i % kTileOutputs;
    if (r >= rows || n >= p.outputs) continue;
    float value = 0;
    for (int k = 0; k < kWarps; ++k) value += sums[k][i / kTileOutputs][i % kTileOutputs];
    p.out(r)[n] = value;
  }
}

/// The same of a few outputs, as of a gate that a row has: a warp makes one.
constexpr int kWarpOutputs = 4;
__global__ void __launch_bounds__(kThreads) multiply_warp_f32(const Timestamps timestamps, const Args p) {
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.x) * kWarps + warp, n = static_cast<int>(blockIdx.y);
  pdl.wait();
  if (row >= *p.rows) return;
  const auto* const x = reinterpret_cast<const float4*>(p.in(row));
  const auto* const w = reinterpret_cast<const float4*>(p.weight + int64_t{n} * p.columns);
  float sum = 0;
#pragma unroll 8
  for (int c = lane; c < p.columns / 4; c += 32) {
    const float4 a = __ldg(x + c), b = __ldg(w + c);
    sum += (a.x * b.x + a.y * b.y) + (a.z * b.z + a.w * b.w);
  }
  sum = lane_sum(sum);
  if (lane == 0) p.out(row)[n] = sum;
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<Matmul>(record.args);
  return sizes.rows > 8 && p[op.weight.id].type == quant::Type::F32 && p[op.weight.id].columns() % 4 == 0 &&
         p[op.in.id].stride[0] % 4 == 0 && p[op.in.id].offset % 4 == 0;
}

void launch_f32(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Matmul>(record.args);
  const Matrix weight = c.memory.matrix(op.weight.id);
  const auto* first = reinterpret_cast<const float*>(weight.codes) + weight.first_row * weight.columns;
  const Args args{c.memory.rows(op.in.id),
                  c.memory.rows(op.out.id),
                  first,
                  weight.rows,
                  weight.columns,
                  p[op.in.id].shape[0] == kOutputRows ? &c.step.header->outputs : &c.step.header->rows};
  const int64_t rows = c.rows(p[op.in.id]);
  if (weight.rows <= kWarpOutputs) {
    const dim3 grid(static_cast<unsigned>((rows + kWarps - 1) / kWarps), static_cast<unsigned>(weight.rows));
    return launch(c, multiply_warp_f32, {grid, dim3(kThreads)}, args);
  }
  const auto blocks = static_cast<unsigned>((rows + kTileRows - 1) / kTileRows);
  const auto across = static_cast<unsigned>((weight.rows + kTileOutputs - 1) / kTileOutputs);
  launch(c, multiply_f32, {dim3(blocks, across), dim3(kThreads)}, args);
}

}  // namespace

const Kernel kMatmulF32{"GEMM in float32", serves, launch_f32};

}  // namespace sluice::backend::cuda
