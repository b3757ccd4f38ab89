// norm_route for few rows and a float32 router: norm, router and selection in one launch, a cluster of blocks
// a row. The blocks share the router's rows, of which a warp takes a stretch of columns; parts of logits are
// pushed into the first block's shared memory, and one warp of it selects.
//
// Half a megabyte of router at batch 1: bound by latency. So the router and the norm's weights are in shared
// memory before the row is there, and the norm's factor multiplies the logits instead of the row.
#include "backend/cuda/gemv/gemv.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/router/route.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = kMostInCluster;
constexpr int kMostRows = 8;
constexpr int kFours = 8;                  // of four columns, in a lane's registers
constexpr int kStretch = kFours * 4 * 32;  // columns of a warp
constexpr int kMostStretches = 16;
constexpr int kMostParts = 2048;  // experts times stretches

struct Args {
  StepView step;
  const float* router;
  Rows<float> in, normed, weights;
  Rows<int32_t> ids;
  const float *norm, *bias;
  float epsilon;
  RouteRule rule;
  int stretches;  // of a row
  bool gemv;
};

__global__ void __launch_bounds__(kThreads, 2)
    norm_route(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ float parts[kMostParts], selection[kMostRouted];  // parts: [stretches][experts]
  __shared__ float squares[kMostStretches], bias[kMostRouted];
  __shared__ Arrivals arrivals;  // of logits, in the first block
  const PdlLink pdl(timestamps);
  const int rank = static_cast<int>(cluster_rank()), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int columns = args.in.columns, experts = args.rule.experts;
  const int each = (experts + kBlocks - 1) / kBlocks, first = rank * each;
  // Tasks of this block: stretches of its experts, or of one where it has none, for the sum of squares.
  const int tasks = max(1, min(each, experts - first)) * args.stretches;
  float* const norm = reinterpret_cast<float*>(dynamic_shared(0));  // [columns]
  float* const router = norm + columns + warp * kStretch;           // this warp's stretch
  const auto expert = [&](int task) { return first + task / args.stretches; };
  const auto fetch = [&](int task) {
    const int begin = task % args.stretches * kStretch;
    const float* from = args.router + int64_t{min(expert(task), experts - 1)} * columns + begin;
#pragma unroll 1
    for (int c = 4 * lane; c < min(kStretch, columns - begin); c += 128) copy_async(router + c, from + c);
  };
  if (threadIdx.x == 0) arrivals.begin(), arrivals.expect(rank == 0 ? 4 * experts * args.stretches : 0);
  cluster_here();
  if (warp < tasks) fetch(warp);
#pragma unroll 1
  for (int c = 4 * static_cast<int>(threadIdx.x); c < columns; c += 4 * kThreads)
    copy_async(norm + c, args.norm + c);
  if (args.bias != nullptr) {
#pragma unroll 1
    for (int e = threadIdx.x; e < experts; e += kThreads) bias[e] = __ldg(args.bias + e);
  }
  const int64_t row = blockIdx.y;
  // Computed before the wait, and kept from being computed after it.
  int begin = warp % args.stretches * kStretch;
  const float* in = args.in(row) + begin;
  asm volatile("" : "+l"(in), "+r"(begin));
  cluster_all();
  pdl.wait();
  // A row that is not there: all blocks of its cluster leave together.
  if (!args.gemv && row >= args.step.header->rows) return;
  float4 x[kFours];
  const auto load = [&] {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int c = (i * 32 + lane) * 4;
      x[i] = make_float4(0, 0, 0, 0);
      if (begin + c < columns) x[i] = load_four(reinterpret_cast<const float4*>(in + c));
    }
  };
  load();
  wait_for_copies();
  __syncthreads();  // the norm's weights are everybody's
#pragma unroll 1
  for (int task = warp; task < tasks; task += kWarps) {
    if (task != warp) {
      begin = task % args.stretches * kStretch, in = args.in(row) + begin;
      fetch(task), load(), wait_for_copies();
    }
    float sum = 0, square = 0;
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int in_stretch = (i * 32 + lane) * 4;
      if (begin + in_stretch >= columns) continue;
      const float4 r = *reinterpret_cast<const float4*>(router + in_stretch);
      const float4 w = *reinterpret_cast<const float4*>(norm + begin + in_stretch);
      sum += (x[i].x * w.x * r.x + x[i].y * w.y * r.y) + (x[i].z * w.z * r.z + x[i].w * w.w * r.w);
      square += (x[i].x * x[i].x + x[i].y * x[i].y) + (x[i].z * x[i].z + x[i].w * x[i].w);
    }
    sum = lane_sum(sum), square = lane_sum(square);
    if (lane != 0) continue;
    if (expert(task) < experts) arrivals.push(parts + task % args.stretches * experts + expert(task), 0, sum);
    if (task < args.stretches) squares[task] = square;
  }
  __syncthreads();
  float square = 0;
#pragma unroll 1
  for (int s = 0; s < args.stretches; ++s) square += squares[s];
  const float factor = rsqrtf(square / static_cast<float>(columns) + args.epsilon);
  if (rank == 0 && warp == 0) {
    arrivals.wait();
#pragma unroll 1
    for (int e = lane; e < experts; e += 32) {
      float logit = 0;
#pragma unroll 1
      for (int s = 0; s < args.stretches; ++s) logit += parts[s * experts + e];
      parts[e] = logit * factor;
    }
    __syncwarp();
    route_warp(args.rule, parts, selection, args.bias != nullptr ? bias : nullptr, args.ids(row),
               args.weights(row));
    return;
  }
#pragma unroll 1
  for (int c = rank * kThreads + threadIdx.x; c < columns; c += kBlocks * kThreads) {
    // The warp that selects has no time for its columns: the last one takes them.
    args.normed(row)[c] = __ldcg(args.in(row) + c) * factor * __ldg(args.norm + c);
  }
  if (rank == 0 && warp == kWarps - 1) {
#pragma unroll 1
    for (int c = lane; c < columns; c += kBlocks * kThreads)
      args.normed(row)[c] = __ldcg(args.in(row) + c) * factor * __ldg(args.norm + c);
  }
}

/// The norm's weights and a stretch of the router for each warp.
int64_t shared_bytes(int64_t columns) { return (columns + kWarps * kStretch) * 4; }

void launch_norm_route(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormRoute>(record.args);
  const Memory& memory = context.memory;
  Args args{};
  args.step = context.step;
  const Matrix router = memory.matrix(op.router.id);
  args.router = reinterpret_cast<const float*>(router.codes) + router.first_row * router.columns;
  args.in = memory.rows(op.in.id), args.normed = memory.rows(op.normed.id);
  args.weights = memory.rows(op.route.weights.id), args.ids = memory.int_rows(op.route.ids.id);
  args.norm = memory.vector(op.norm.id), args.bias = memory.vector(op.route.bias.id);
  args.epsilon = op.epsilon;
  args.rule = route_rule(op.route, program[op.router.id].shape[1], program[op.route.ids.id].columns());
  args.stretches = (args.in.columns + kStretch - 1) / kStretch;
  args.gemv = context.step_rows == 1;
  const LaunchShape shape{dim3(kBlocks, static_cast<unsigned>(context.rows(program[op.in.id]))),
                          dim3(kThreads), shared_bytes(args.in.columns), kBlocks};
  launch(context, norm_route, shape, args);
}

bool serves_norm_route(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormRoute>(record.args);
  const int64_t columns = program[op.in.id].columns();
  return sizes.architecture >= 90 && sizes.rows <= kMostRows && !op.router_bias &&
         program[op.router.id].type == quant::Type::F32 && program[op.router.id].shape[1] <= kMostRouted &&
         columns % 4 == 0 && columns <= int64_t{kStretch} * kMostStretches;
}

}  // namespace

const Kernel kNormRoute{"norm, router and selection in a cluster", serves_norm_route, launch_norm_route};

}  // namespace sluice::backend::cuda
