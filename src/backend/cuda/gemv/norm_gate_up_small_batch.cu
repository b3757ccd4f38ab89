// norm_gate_up of 2 to 16 rows: a launch makes the normed rows codes of eight bits, a thread block a row, and
// the kernel of experts with few tokens (moe/experts_small_batch.cu) takes the dense matrices for the only
// expert that there is. Bound by memory, where tiles of many rows read 15 to 25% of what it gives.
#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kMostRows = 16;
constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMostQuads = 4;  ///< of a warp, held in registers
constexpr int64_t kMostColumns = int64_t{kWarps} * kMostQuads * int8_mma::kQuad;

struct Args {
  const int32_t* rows;
  Rows<float> in;
  const float* norm;
  float epsilon;
  char* codes;  ///< [rows][token.pitch]
  int8_mma::TokenRows token;
};

__global__ void __launch_bounds__(kThreads)
    normed_codes(const Timestamps timestamps, const __grid_constant__ Args p) {
  __shared__ float partial[kWarps];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int row = static_cast<int>(blockIdx.x), quads = p.in.columns / int8_mma::kQuad;
  const auto place = [&](int i) { return min(warp + i * kWarps, quads - 1) * 32 + lane; };
  float4 v[kMostQuads], by[kMostQuads];
#pragma unroll
  for (int i = 0; i < kMostQuads; ++i) by[i] = __ldg(reinterpret_cast<const float4*>(p.norm) + place(i));
  pdl.wait();
  if (row >= *p.rows) return;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMostQuads; ++i) v[i] = __ldcg(reinterpret_cast<const float4*>(p.in(row)) + place(i));
#pragma unroll
  for (int i = 0; i < kMostQuads; ++i) {
    if (warp + i * kWarps < quads)
      squares += (v[i].x * v[i].x + v[i].y * v[i].y) + (v[i].z * v[i].z + v[i].w * v[i].w);
  }
  squares = lane_sum(squares);
  if (lane == 0) partial[warp] = squares;
  __syncthreads();
  float all = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) all += partial[w];
  const float factor = 1.0f / sqrtf(all / static_cast<float>(p.in.columns) + p.epsilon);
#pragma unroll
  for (int i = 0; i < kMostQuads; ++i) {
    if (warp + i * kWarps >= quads) break;
    const float4 n{v[i].x * by[i].x * factor, v[i].y * by[i].y * factor, v[i].z * by[i].z * factor,
                   v[i].w * by[i].w * factor};
    int8_mma::store_codes(n, p.codes + int64_t{row} * p.token.pitch, p.token, warp + i * kWarps);
  }
}

ExpertsShape shape_of(const Program& p, const NormGateUp& op) {
  const Tensor& gate = p[op.gate_up.gate.id];
  return {gate.type, 1, gate.shape[1], gate.columns(), 1, true};
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormGateUp>(record.args);
  const Tensor &in = p[op.in.id], &gate = p[op.gate_up.gate.id], &up = p[op.gate_up.up.id];
  return sizes.rows > kNarrowRows && sizes.rows <= kMostRows && gate.type == up.type &&
         in.stride[0] % 4 == 0 && in.offset % 4 == 0 && in.columns() <= kMostColumns &&
         serves_experts_small_batch(shape_of(p, op), sizes.rows, sizes.architecture);
}

int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  const ExpertsShape shape = shape_of(p, std::get<NormGateUp>(record.args));
  return sizes.rows * experts_token(shape.type, shape.columns).pitch;
}

void launch_norm_gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<NormGateUp>(record.args);
  const Matrix gate = c.memory.matrix(op.gate_up.gate.id);
  const Rows<float> in = flat(c.memory.rows(op.in.id));
  Scratch scratch(c.scratch);
  const int8_mma::TokenRows token = experts_token(gate.type, gate.columns);
  const Args args{&c.step.header->rows,
                  in,
                  c.memory.vector(op.norm.id),
                  op.epsilon,
                  scratch.take<char>(c.step_rows * token.pitch),
                  token};
  launch(c, normed_codes, {dim3(static_cast<unsigned>(c.step_rows)), dim3(kThreads)}, args);
  multiply_experts_small_batch({.weight = gate,
                                .up = c.memory.matrix(op.gate_up.up.id),
                                .gated = true,
                                .by_pair = false,
                                .in = in,
                                .out = c.memory.rows(op.gate_up.out.id),
                                .ids = {nullptr, 0, 0, 1, 1},
                                .rows = args.rows,
                                .coded = args.codes},
                               c);
}

}  // namespace

const Kernel kNormGateUpSmallBatch{"rows in codes + small-batch gated GEMV in 8 bits", serves,
                                   launch_norm_gate_up, scratch_bytes};

}  // namespace sluice::backend::cuda
