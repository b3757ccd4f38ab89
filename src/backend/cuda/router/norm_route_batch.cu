// norm_route of several rows in one launch: a cluster of blocks takes sixteen rows. The blocks share the
// experts; each of them multiplies its rows with its experts' weights, warps sharing the columns, and pushes
// its logits to the block that selects for the row. The norm is a factor of a row, so it is multiplied in at
// last.
//
// Tensor cores multiply, and float32 is what they see: a number is a sum of two of eleven bits (TF32), of
// whose products the smallest is left out. So an error is some 2^-22 of a product, as small as float32's own
// over some thousand columns.
//
// Rows and the router come from L2, once a block and once a cluster: bound by that and by latency.
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mma_float32.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/router/route.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRows = 16;                   ///< of a cluster
constexpr int kTileExperts = 8, kFour = 4;  ///< columns that a lane has of 16

struct Args {
  const int32_t* rows;
  Rows<float> in, normed, weights;
  Rows<int32_t> ids;
  const float *router, *norm, *bias;
  const float* router_bias;  ///< of the logits, or null
  int32_t columns;
  float epsilon;
  RouteRule rule;
  bool lanes;  ///< the selection is made in registers
};

/// The sums of a warp's columns: of products, and of what is left of them.
template <int kTiles>
struct Sums {
  float of[kTiles][4] = {}, rest[kTiles][4] = {};

  __device__ __forceinline__ void add(const float4 (&x)[2], const float4 (&w)[kTiles]) {
    const Halved a[2][kFour] = {{Halved(x[0].x), Halved(x[0].y), Halved(x[0].z), Halved(x[0].w)},
                                {Halved(x[1].x), Halved(x[1].y), Halved(x[1].z), Halved(x[1].w)}};
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const Halved b[kFour] = {Halved(w[j].x), Halved(w[j].y), Halved(w[j].z), Halved(w[j].w)};
#pragma unroll
      for (int k = 0; k < kFour; k += 2) {  // any order of the columns is right, the same for both
        const Halved of_k[4] = {a[0][k], a[1][k], a[0][k + 1], a[1][k + 1]};
        mma_float32(of[j], rest[j], of_k, b[k], b[k + 1]);
      }
    }
  }
};

/// kBlocks: of a cluster. kTiles: of eight experts, that a block takes at once.
template <int kBlocks, int kTiles>
__global__ void __launch_bounds__(kThreads, 2)
    norm_route_batch(const Timestamps timestamps, const __grid_constant__ Args p) {
  constexpr int kRowsEach = kRows / kBlocks;  // that a block selects for
  constexpr int kExperts = kTiles * kTileExperts, kAhead = kTiles > 2 ? 2 : 4;
  __shared__ float logits[kRowsEach][kMostRouted], selection[kMostRouted];
  __shared__ float partial[kWarps][kRows][kExperts], squares[kWarps][kRows], inverse[kRows];
  const PdlLink pdl(timestamps);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int g = lane / 4, t = lane % 4, rank = static_cast<int>(cluster_rank());
  const int share =
      ((p.rule.experts + kBlocks - 1) / kBlocks + kTileExperts - 1) / kTileExperts * kTileExperts;
  const int first = rank * share, last = min(first + share, p.rule.experts), fours = p.columns / 4;
  if (blockIdx.y == 0) {
    prefetch_range(reinterpret_cast<const uint8_t*>(p.router + int64_t{first} * p.columns),
                   int64_t{max(0, last - first)} * p.columns * 4);
  }
  if (p.bias != nullptr && p.lanes) {
    for (int e = static_cast<int>(threadIdx.x); e < p.rule.experts; e += kThreads)
      selection[e] = __ldg(p.bias + e);
  }
  pdl.wait();
  const int first_row = static_cast<int>(blockIdx.y) * kRows, rows = *p.rows;
  if (first_row >= rows) return;  // all blocks of the cluster
  cluster_here();
  const auto row_at = [&](int r) {
    return reinterpret_cast<const float4*>(p.in(min(first_row + r, rows - 1)));
  };
  const float4* const x[2] = {row_at(g), row_at(g + 8)};
  const auto* const norm = reinterpret_cast<const float4*>(p.norm);
  const int chunks = (fours + kFour - 1) / kFour, chunks_each = (chunks + kWarps - 1) / kWarps;
  const int end = min((warp + 1) * chunks_each, chunks);

  for (int n = first; n < last || n == first; n += kExperts) {
    const float4* w[kTiles];
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int expert = min(n + j * kTileExperts + g, p.rule.experts - 1);
      w[j] = reinterpret_cast<const float4*>(p.router) + int64_t{expert} * fours;
    }
    Sums<kTiles> sums;
    float square[2] = {};
#pragma unroll kAhead
    for (int c = warp * chunks_each; c < end; ++c) {
      const int at = c * kFour + t, in = min(at, fours - 1);
      const float4 by = __ldg(norm + in);
      float4 v[2] = {__ldg(x[0] + in), __ldg(x[1] + in)}, weights[kTiles];
#pragma unroll
      for (int j = 0; j < kTiles; ++j) weights[j] = __ldg(w[j] + in);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (at >= fours) v[h] = {0, 0, 0, 0};
        square[h] += (v[h].x * v[h].x + v[h].y * v[h].y) + (v[h].z * v[h].z + v[h].w * v[h].w);
        v[h].x *= by.x, v[h].y *= by.y, v[h].z *= by.z, v[h].w *= by.w;
      }
      sums.add(v, weights);
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
#pragma unroll
      for (int k = 0; k < 4; ++k)
        partial[warp][g + k / 2 * 8][j * kTileExperts + 2 * t + k % 2] = sums.of[j][k] + sums.rest[j][k];
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float all = lane_sum(square[h], 4);
      if (t == 0) squares[warp][g + h * 8] = all;
    }
    if (n == first) cluster_all();  // the others have begun: results go to their shared memory
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kExperts; i += kThreads) {
      const int r = i / kExperts, e = i % kExperts;
      float all = 0, sum = 0;
#pragma unroll
      for (int from = 0; from < kWarps; ++from) all += partial[from][r][e], sum += squares[from][r];
      const float factor = 1.0f / sqrtf(sum / static_cast<float>(p.columns) + p.epsilon);
      if (e == 0) inverse[r] = factor;
      if (n + e < last) {
        const float bias = p.router_bias != nullptr ? __ldg(p.router_bias + n + e) : 0.0f;
        store_at_rank(&logits[r % kRowsEach][n + e], static_cast<unsigned>(r / kRowsEach),
                      all * factor + bias);
      }
    }
    __syncthreads();
  }

  cluster_release();

  // The normed rows themselves: a slice of the columns a block.
  const int slice = (fours + kBlocks - 1) / kBlocks;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * slice; i += kThreads) {
    const int r = i / slice, c = rank * slice + i % slice;
    if (first_row + r >= rows || c >= fours) continue;
    float4 v = __ldg(reinterpret_cast<const float4*>(p.in(first_row + r)) + c);
    const float4 by = __ldg(norm + c);
    const float factor = inverse[r];
    v.x *= factor * by.x, v.y *= factor * by.y, v.z *= factor * by.z, v.w *= factor * by.w;
    *(reinterpret_cast<float4*>(p.normed(first_row + r)) + c) = v;
  }
  cluster_all();
  // In lanes a warp selects for a row; otherwise one for all.
  for (int r = warp; r < (p.lanes || warp == 0 ? kRowsEach : 0); r += p.lanes ? kWarps : 1) {
    const int row = first_row + rank * kRowsEach + r;
    if (row >= rows) return;
    int32_t* const ids = p.ids(row);
    float* const weights = p.weights(row);
    if (!p.lanes) {
      route_warp(p.rule, logits[r], selection, p.bias, ids, weights);
      __syncwarp();
      continue;
    }
    float scores[kMostEach];
#pragma unroll
    for (int i = 0; i < kMostEach; ++i)
      scores[i] = 32 * i < p.rule.experts ? logits[r][min(lane + 32 * i, p.rule.experts - 1)] : 0.0f;
    int id = 0;
    float weight = 0;
    route_lanes(p.rule, scores, p.bias != nullptr ? selection : nullptr, id, weight);
    if (lane < p.rule.used) ids[lane] = id, weights[lane] = weight;
  }
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
            memory.vector(op.router_bias.id),
            router.columns,
            op.epsilon,
            route_rule(op.route, program[op.router.id].shape[1], program[op.route.ids.id].columns())};
  args.lanes = in_lanes(args.rule);
  const int64_t rows = context.rows(program[op.in.id]);
  // Up to 16 or 32 experts a block; of more than 256 they go over their rows again.
  const int experts = args.rule.experts, blocks = experts <= 128 ? 4 : 8;
  const auto kernel = experts <= 64    ? norm_route_batch<4, 2>
                      : experts <= 128 ? norm_route_batch<4, 4>
                                       : norm_route_batch<8, 4>;
  launch(context, kernel,
         {dim3(static_cast<unsigned>(blocks), static_cast<unsigned>((rows + kRows - 1) / kRows)),
          dim3(kThreads), 0, blocks},
         args);
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormRoute>(record.args);
  const auto fours = [&](TensorId id) { return p[id].stride[0] % 4 == 0 && p[id].offset % 4 == 0; };
  return sizes.architecture >= 90 && sizes.rows > 1 && p[op.router.id].type == quant::Type::F32 &&
         p[op.router.id].shape[1] <= kMostRouted && p[op.in.id].columns() % 4 == 0 && fours(op.in.id) &&
         fours(op.normed.id);
}

}  // namespace

const Kernel kNormRouteBatch{"norm, router and selection, a cluster for sixteen rows", serves,
                             launch_norm_route};

}  // namespace sluice::backend::cuda
