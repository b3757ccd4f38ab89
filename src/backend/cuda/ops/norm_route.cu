// norm_route for few rows: norm, router and selection in one launch, a cluster of blocks a row. The blocks
// share the router's rows, push their logits to the first block's shared memory, and one warp of it selects.
//
// Half a megabyte of router at batch 1: bound by latency, the weights are asked for before the row is there.
#include "backend/cuda/memory.h"
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/dot.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/prefetch.cuh"
#include "backend/cuda/prim/route.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kBlocks = kMostInCluster;
constexpr int kMostRows = 8;

struct Args {
  StepView step;
  Matrix router;
  Rows<float> in, normed, weights;
  Rows<int32_t> ids;
  const float *norm, *bias;
  float epsilon;
  RouteRule rule;
  int lanes;
  bool bytes, one_row;
};

__global__ void __launch_bounds__(kThreads, 2) norm_route(const __grid_constant__ Args args) {
  __shared__ float logits[kMostRouted], selection[kMostRouted];
  __shared__ float partial[33];
  let_next_start();
  const unsigned rank = cluster_rank();
  const int group = 32 / args.lanes, tasks = (args.router.rows + group - 1) / group;
  const int each = (tasks + kBlocks - 1) / kBlocks, first_task = static_cast<int>(rank) * each;
  prefetch_rows(args.router, first_task * group, each * group);
  wait_for_previous();
  const int64_t row = blockIdx.y;
  // A row that is not there: all blocks of its cluster leave together.
  if (!args.one_row && row >= args.step.header->rows) return;
  const Activations x{0, args.in.columns, args.bytes, true};
  x.fill(0, args.in(row), args.norm, args.epsilon, partial);
  __syncthreads();
  if (rank == kBlocks - 1) {
    for (int c = threadIdx.x; c < args.in.columns; c += kThreads) args.normed(row)[c] = x.float_row(0)[c];
  }
  for (int task = first_task + threadIdx.x / 32; task < min(first_task + each, tasks); task += kWarps) {
    const int n = task * group + threadIdx.x % 32 / args.lanes;
    const Sums<1> sums =
        dot<1>(args.router, args.router.row(0, n), n < args.router.rows ? 1 : 0, args.lanes, x);
    if (n < args.router.rows && threadIdx.x % args.lanes == 0) store_at_rank(logits + n, 0, sums.of[0]);
  }
  cluster_meet();
  if (rank == 0 && threadIdx.x < 32) {
    route_warp(args.rule, logits, selection, args.bias, args.ids(row), args.weights(row));
  }
}

void launch_norm_route(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormRoute>(record.args);
  const Memory& memory = context.memory;
  Args args{};
  args.step = context.step;
  args.router = memory.matrix(op.router.id);
  args.in = memory.rows(op.in.id), args.normed = memory.rows(op.normed.id);
  args.weights = memory.rows(op.route.weights.id), args.ids = memory.int_rows(op.route.ids.id);
  args.norm = memory.vector(op.norm.id), args.bias = memory.vector(op.route.bias.id);
  args.epsilon = op.epsilon;
  args.rule = route_rule(op.route, program[op.router.id].shape[1], program[op.route.ids.id].columns());
  args.lanes = lanes_for(args.router.type, args.router.columns);
  args.bytes = find_format(args.router.type) != nullptr;
  args.one_row = context.step_rows == 1;
  const LaunchShape shape{dim3(kBlocks, static_cast<unsigned>(context.rows(program[op.in.id]))),
                          dim3(kThreads), Activations::row_bytes(args.in.columns, args.bytes, true), kBlocks};
  launch(context, norm_route, shape, args);
}

bool serves_norm_route(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormRoute>(record.args);
  return sizes.architecture >= 90 && sizes.rows <= kMostRows &&
         program[op.router.id].shape[1] <= kMostRouted && program[op.in.id].columns() % 4 == 0 &&
         program[op.in.id].columns() * 6 <= kMostShared;
}

}  // namespace

const Kernel kNormRoute{"norm, router and selection in a cluster", serves_norm_route, launch_norm_route};

}  // namespace sluice::backend::cuda
