// moe_down_add for few rows: down projections of the selected experts and the shared ones, router weights and
// the residual in one launch; the sum over experts is taken in the order of their slots, so it never varies.
//
// A thread block takes 8 output rows. Its warps take (some rows, expert) each, leave the products in shared
// memory, and one thread a row adds them up. Bound by reading weights: 9.7 MB for GLM-4.7-Flash in the q4_0
// mix.
#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/residual.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/moe/gemv_mixture.cuh"
#include "backend/cuda/prim/dot.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256;
constexpr int kOutputs = 8;  // of a block
constexpr int kOut = 4;      // of a warp's group of lanes
constexpr int kMostExperts = 32;

struct Args {
  StepView step;
  Matrix down, shared_down;  // shared_down.codes null: no shared experts
  Rows<float> in, shared_in, residual, out;
  Rows<float> weights;
  Rows<int32_t> ids;
  const float* bias;  // null, or [experts][outputs]
  int lanes, shared_lanes;
  bool bytes, floats, shared_bytes, shared_floats, gemv;
};

/// Turns in which warps take kOutputs rows.
__device__ inline int passes_of(int lanes) { return (kOutputs / kOut * lanes + 31) / 32; }

/// Products of kOutputs rows with one expert, in turns: this warp's turn.
__device__ void run_task(const Matrix& m, int matrix, int pass, int lanes, const Activations& x,
                         float* products) {
  const int in_block = (pass * (32 / lanes) + threadIdx.x % 32 / lanes) * kOut;
  const int n = blockIdx.x * kOutputs + in_block;
  const int count = in_block < kOutputs ? min(kOut, m.rows - n) : 0;
  const Sums<kOut> sums = dot<kOut, true>(m, m.row(matrix, n), count, lanes, x);
  if (threadIdx.x % lanes != 0) return;
#pragma unroll
  for (int o = 0; o < kOut; ++o) {
    if (o < count) products[in_block + o] = sums.of[o];
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    moe_down_add(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ float products[kMostExperts + 1][kOutputs];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int64_t row = blockIdx.y;
  if (!args.gemv && row >= args.step.header->rows) return;
  const int used = args.in.heads;
  const Activations routed{0, args.in.columns, args.bytes, args.floats};
  for (int k = 0; k < used; ++k) routed.fill(k, args.in(row, k), nullptr, 0, nullptr);
  const bool has_shared = args.shared_down.codes != nullptr;
  const Activations from_shared{used * routed.stride(), args.shared_in.columns, args.shared_bytes,
                                args.shared_floats};
  if (has_shared) from_shared.fill(0, args.shared_in(row), nullptr, 0, nullptr);
  __syncthreads();

  const int passes = passes_of(args.lanes);
  const int shared_passes = has_shared ? passes_of(args.shared_lanes) : 0;
  for (int task = threadIdx.x / 32; task < used * passes + shared_passes; task += kThreads / 32) {
    if (task < shared_passes) {
      run_task(args.shared_down, 0, task, args.shared_lanes, from_shared, products[kMostExperts]);
      continue;
    }
    const int slot = (task - shared_passes) / passes;
    Activations x = routed;
    x.offset += slot * routed.stride();
    run_task(args.down, __ldcg(args.ids(row) + slot), (task - shared_passes) % passes, args.lanes, x,
             products[slot]);
  }
  __syncthreads();
  const int n = blockIdx.x * kOutputs + threadIdx.x;
  if (threadIdx.x >= kOutputs || n >= args.down.rows) return;
  float sum = 0;
  for (int k = 0; k < used; ++k) {
    float product = products[k][threadIdx.x];
    if (args.bias != nullptr)
      product += __ldg(args.bias + int64_t{__ldcg(args.ids(row) + k)} * args.down.rows + n);
    sum += __ldcg(args.weights(row) + k) * product;
  }
  if (has_shared) sum += products[kMostExperts][threadIdx.x];
  args.out(row)[n] = sum + __ldcg(args.residual(row) + n);
}

int64_t row_bytes(const Program& program, TensorId weight, TensorId in) {
  const bool blocked = find_format(program[weight].type) != nullptr;
  return Activations::row_bytes(static_cast<int>(program[in].columns()), blocked, !blocked);
}

/// Bytes of shared memory.
int64_t shared_bytes(const Program& program, const MoeDownAdd& op) {
  return program[op.in.id].heads() * row_bytes(program, op.down.id, op.in.id) +
         (op.shared_in ? row_bytes(program, op.shared_down.id, op.shared_in.id) : 0);
}

void launch_moe_down_add(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Memory& memory = context.memory;
  Args args{};
  args.step = context.step, args.gemv = context.step_rows == 1;
  args.down = memory.matrix(op.down.id);
  args.in = memory.rows(op.in.id), args.residual = residual_rows(memory, op.residual.id, op.out.id),
  args.out = memory.rows(op.out.id);
  args.weights = memory.rows(op.weights.id), args.ids = memory.int_rows(op.ids.id);
  args.bias = floats_of(memory, op.down_bias.id);
  args.lanes = lanes_for(args.down.type, args.down.columns);
  args.bytes = find_format(args.down.type) != nullptr, args.floats = !args.bytes;
  if (op.shared_in) {
    args.shared_down = memory.matrix(op.shared_down.id);
    args.shared_in = memory.rows(op.shared_in.id);
    args.shared_lanes = lanes_for(args.shared_down.type, args.shared_down.columns);
    args.shared_bytes = find_format(args.shared_down.type) != nullptr,
    args.shared_floats = !args.shared_bytes;
  }
  if (args.gemv &&
      add_down_gemv(context, {args.down, args.shared_down, args.bias, args.in, args.shared_in.data,
                              args.weights.data, args.residual.data, args.ids.data, args.out.data,
                              context.consumes ? context.mailbox(*context.consumes) : Mailbox{}})) {
    return;
  }
  const LaunchShape shape{dim3(static_cast<unsigned>((args.down.rows + kOutputs - 1) / kOutputs),
                               static_cast<unsigned>(context.rows(program[op.in.id]))),
                          dim3(kThreads), shared_bytes(program, op)};
  launch(context, moe_down_add, shape, args);
}

bool serves_moe_down_add(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  if (op.down_bias && (sizes.rows > 1 || program[op.down_bias.id].type != quant::Type::F32)) return false;
  return program[op.in.id].heads() <= kMostExperts && shared_bytes(program, op) <= kMostShared;
}

std::optional<FormSpec> consumes(const Program& program, const Op& record, const Sizes& sizes) {
  if (sizes.rows != 1) return std::nullopt;
  return mixture::given_to_down(program, std::get<MoeDownAdd>(record.args).ids.id, sizes);
}

}  // namespace

const Kernel kMoeDownAdd{
    "gemv of experts, summed", serves_moe_down_add, launch_moe_down_add, nullptr, nullptr, consumes};

}  // namespace sluice::backend::cuda
