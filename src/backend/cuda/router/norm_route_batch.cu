// norm_route of several rows in one launch: a cluster of blocks takes four rows. The blocks share the
// experts; each of them goes over its four rows with its experts' weights in float32, columns shared by all
// lanes, and pushes its logits to the block that selects for the row. The norm is a factor of a row, so it is
// multiplied in at last.
//
// Half a megabyte of router comes from L2 once a cluster: bound by that and by latency.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/router/route.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256, kWarps = kThreads / 32, kBlocks = kMostInCluster;
constexpr int kRows = 4, kOutputs = 8;  ///< that a block's lanes take at once
/// More rows are normed once, and their logits made by a kernel that reads less.
constexpr int64_t kMostRows = 1024;

struct Args {
  const int32_t* rows;
  Rows<float> in, normed, weights;
  Rows<int32_t> ids;
  const float *router, *norm, *bias;
  int32_t columns;
  float epsilon;
  RouteRule rule;
  bool lanes;  ///< the selection is made in registers
};

/// Lane l gets the sum over all lanes of value l.
__device__ __forceinline__ float sum_by_lane(float (&value)[32]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const bool upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < step; ++i) {
      const float other = __shfl_xor_sync(kWholeWarp, upper ? value[i] : value[i + step], step);
      value[i] = (upper ? value[i + step] : value[i]) + other;
    }
  }
  return value[0];
}

__global__ void __launch_bounds__(kThreads)
    norm_route_batch(const Timestamps timestamps, const __grid_constant__ Args p) {
  __shared__ float logits[kMostRouted], selection[kMostRouted];
  __shared__ float partial[kWarps][32], squares[kWarps][kRows], inverse[kRows];
  const PdlLink pdl(timestamps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = static_cast<int>(cluster_rank());
  const int share = (p.rule.experts + kBlocks - 1) / kBlocks;
  prefetch_range(reinterpret_cast<const uint8_t*>(p.router + int64_t{rank} * share * p.columns),
                 int64_t{max(0, min(share, p.rule.experts - rank * share))} * p.columns * 4);
  const int fours = p.columns / 4, first = rank * share, last = min(first + share, p.rule.experts);
  const auto router_at = [&](int n, int c) {
    return __ldg(reinterpret_cast<const float4*>(p.router) + int64_t{min(n, p.rule.experts - 1)} * fours + c);
  };
  float4 w[kOutputs];  // what a thread multiplies next
  const auto ask = [&](int n, int c) {
#pragma unroll
    for (int j = 0; j < kOutputs; ++j) w[j] = router_at(n + j, min(c, fours - 1));
  };
  ask(first, threadIdx.x);
  if (p.lanes && warp == kWarps - 1 && p.bias != nullptr) {
    for (int e = lane; e < p.rule.experts; e += 32) selection[e] = __ldg(p.bias + e);
  }
  pdl.wait();
  const int first_row = static_cast<int>(blockIdx.y) * kRows, rows = *p.rows;
  if (first_row >= rows) return;  // all blocks of the cluster
  cluster_here();
  const float4* x[kRows];
#pragma unroll
  for (int r = 0; r < kRows; ++r) x[r] = reinterpret_cast<const float4*>(p.in(min(first_row + r, rows - 1)));
  const auto* const norm = reinterpret_cast<const float4*>(p.norm);

  for (int n = first; n < last || n == first; n += kOutputs) {
    float sum[32] = {}, square[kRows] = {};
    if (n != first) ask(n, threadIdx.x);
    for (int c = threadIdx.x; c < fours; c += kThreads) {
      float4 v[kRows];
      const float4 by = __ldg(norm + c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) v[r] = __ldg(x[r] + c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        square[r] += v[r].x * v[r].x + v[r].y * v[r].y + v[r].z * v[r].z + v[r].w * v[r].w;
        v[r].x *= by.x, v[r].y *= by.y, v[r].z *= by.z, v[r].w *= by.w;
#pragma unroll
        for (int j = 0; j < kOutputs; ++j) {
          sum[r * kOutputs + j] += v[r].x * w[j].x;
          sum[r * kOutputs + j] += v[r].y * w[j].y;
          sum[r * kOutputs + j] += v[r].z * w[j].z;
          sum[r * kOutputs + j] += v[r].w * w[j].w;
        }
      }
      ask(n, c + kThreads);
    }
    if (n == first) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float all = lane_sum(square[r]);
        if (lane == 0) squares[warp][r] = all;
      }
    }
    partial[warp][lane] = sum_by_lane(sum);
    if (n == first) cluster_all();  // the others have begun: results go to their shared memory
    __syncthreads();
    if (warp == 0) {
      if (n == first && lane < kRows) {
        float all = 0;
        for (int i = 0; i < kWarps; ++i) all += squares[i][lane];
        inverse[lane] = 1.0f / sqrtf(all / static_cast<float>(p.columns) + p.epsilon);
      }
      __syncwarp();
      float all = 0;
      for (int i = 0; i < kWarps; ++i) all += partial[i][lane];
      const int r = lane / kOutputs, expert = n + lane % kOutputs;
      if (expert < last) store_at_rank(logits + expert, static_cast<unsigned>(r), all * inverse[r]);
    }
    __syncthreads();
  }

  cluster_release();

  // The normed rows themselves: a slice of the columns a block.
  const int slice = (fours + kBlocks - 1) / kBlocks;
  for (int i = threadIdx.x; i < kRows * slice; i += kThreads) {
    const int r = i / slice, c = rank * slice + i % slice;
    if (first_row + r >= rows || c >= fours) continue;
    float4 v = __ldg(reinterpret_cast<const float4*>(p.in(first_row + r)) + c);
    const float4 by = __ldg(norm + c);
    const float factor = inverse[r];
    v.x *= factor * by.x, v.y *= factor * by.y, v.z *= factor * by.z, v.w *= factor * by.w;
    *(reinterpret_cast<float4*>(p.normed(first_row + r)) + c) = v;
  }
  cluster_all();
  if (rank >= kRows || first_row + rank >= rows || warp != 0) return;
  int32_t* const ids = p.ids(first_row + rank);
  float* const weights = p.weights(first_row + rank);
  if (!p.lanes) return route_warp(p.rule, logits, selection, p.bias, ids, weights);
  float scores[kMostEach];
#pragma unroll
  for (int i = 0; i < kMostEach; ++i)
    scores[i] = 32 * i < p.rule.experts ? logits[min(lane + 32 * i, p.rule.experts - 1)] : 0.0f;
  int id = 0;
  float weight = 0;
  route_lanes(p.rule, scores, p.bias != nullptr ? selection : nullptr, id, weight);
  if (lane < p.rule.used) ids[lane] = id, weights[lane] = weight;
}

void launch_norm_route(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormRoute>(record.args);
  const Memory& memory = context.memory;
  const Matrix router = memory.matrix(op.router.id);
  Args args{&context.step.header->rows,
            memory.rows(op.in.id),
            memory.rows(op.normed.id),
            memory.rows(op.route.weights.id),
            memory.int_rows(op.route.ids.id),
            reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns,
            memory.vector(op.norm.id),
            memory.vector(op.route.bias.id),
            router.columns,
            op.epsilon,
            route_rule(op.route, program[op.router.id].shape[1], program[op.route.ids.id].columns())};
  args.lanes = in_lanes(args.rule);
  const int64_t rows = context.rows(program[op.in.id]);
  launch(context, norm_route_batch,
         {dim3(kBlocks, static_cast<unsigned>((rows + kRows - 1) / kRows)), dim3(kThreads), 0, kBlocks},
         args);
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormRoute>(record.args);
  const auto fours = [&](TensorId id) { return p[id].stride[0] % 4 == 0 && p[id].offset % 4 == 0; };
  return sizes.architecture >= 90 && sizes.rows > 1 && sizes.rows <= kMostRows &&
         p[op.router.id].type == quant::Type::F32 && p[op.router.id].shape[1] <= kMostRouted &&
         p[op.in.id].columns() % 4 == 0 && fours(op.in.id) && fours(op.normed.id);
}

}  // namespace

const Kernel kNormRouteBatch{"norm, router and selection, a cluster for four rows", serves,
                             launch_norm_route};

}  // namespace sluice::backend::cuda
