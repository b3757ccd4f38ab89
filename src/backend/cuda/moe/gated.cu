// gate_up, moe_gate_up, expert_matmul for few rows: both matrices of an expert (or one) times a row, the gate
// applied at once. Expert ids are read here: nothing is gathered. Shared and routed experts go in one launch.
//
// Every row of the step is multiplied by itself (grid.y): rows that share an expert read it from L2. Bound by
// reading weights: 18.5 MB for GLM-4.7-Flash in the q4_0 mix, 4.1 us at 4.5 TB/s.
#include <stdexcept>

#include "backend/cuda/gemv/gemv.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/dot.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kOut = 4;  // outputs of a warp's group of lanes

/// Matrices that stand for `slots` experts of a row (1: shared or dense, no ids).
struct Experts {
  Matrix gate, up;     // up.codes null: a product without a gate
  Rows<float> out;     // [rows][slots][outputs]
  const int32_t* ids;  // [rows][slots]; null: matrix 0
  int64_t ids_stride;
  int slots, lanes, tasks;  // tasks: warps' work, of a slot
};

struct Args {
  StepView step;
  Experts shared, routed;  // slots 0: not there
  Rows<float> in;          // heads 1: the same row for every slot
  const float* norm;
  float epsilon;
  int tasks;
  bool bytes, floats, by_outputs, gemv;
};

__device__ inline float silu(float x) { return x / (1.0f + expf(-x)); }

__device__ void run_task(const Experts& e, int task, const Activations& x, bool in_by_slot, int64_t row) {
  const int slot = task / e.tasks, group = 32 / e.lanes;
  const int n = (task % e.tasks * group + threadIdx.x % 32 / e.lanes) * kOut;
  const int count = min(kOut, e.gate.rows - n);
  const int expert = e.ids != nullptr ? __ldcg(e.ids + row * e.ids_stride + slot) : 0;
  Activations in = x;
  if (in_by_slot) in.offset += slot * x.stride();
  Sums<kOut> sums = dot<kOut, true>(e.gate, e.gate.row(expert, n), count, e.lanes, in);
  if (e.up.codes != nullptr) {
    const Sums<kOut> up = dot<kOut, true>(e.up, e.up.row(expert, n), count, e.lanes, in);
#pragma unroll
    for (int o = 0; o < kOut; ++o) sums.of[o] = silu(sums.of[o]) * up.of[o];
  }
  if (threadIdx.x % e.lanes != 0) return;
#pragma unroll
  for (int o = 0; o < kOut; ++o) {
    if (o < count) e.out(row, slot)[n + o] = sums.of[o];
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    gated(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ float partial[33];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int64_t row = blockIdx.y;
  if (!args.gemv && row >= (args.by_outputs ? args.step.header->outputs : args.step.header->rows)) return;
  const Activations x{0, args.in.columns, args.bytes, args.floats};
  for (int h = 0; h < args.in.heads; ++h) x.fill(h, args.in(row, h), args.norm, args.epsilon, partial);
  __syncthreads();
  const int shared_tasks = args.shared.slots * args.shared.tasks;
  for (int task = threadIdx.x / 32 * gridDim.x + blockIdx.x; task < args.tasks; task += gridDim.x * kWarps) {
    if (task < shared_tasks) {
      run_task(args.shared, task, x, false, row);
    } else {
      run_task(args.routed, task - shared_tasks, x, args.in.heads > 1, row);
    }
  }
}

void add_experts(Args& args, Experts& experts, const Context& context, TensorId gate, TensorId up,
                 TensorId ids, TensorId out) {
  experts.gate = context.memory.matrix(gate);
  if (up != kNoTensor) experts.up = context.memory.matrix(up);
  experts.out = context.memory.rows(out);
  experts.slots = 1;
  if (ids != kNoTensor) {
    const Rows<int32_t> list = context.memory.int_rows(ids);
    experts.ids = list.data, experts.ids_stride = list.row_stride, experts.slots = list.columns;
  }
  const auto is_float = [](const Matrix& m) { return m.codes != nullptr && find_format(m.type) == nullptr; };
  const auto is_blocked = [](const Matrix& m) {
    return m.codes != nullptr && find_format(m.type) != nullptr;
  };
  args.floats |= is_float(experts.gate) || is_float(experts.up);
  args.bytes |= is_blocked(experts.gate) || is_blocked(experts.up);
  // Both matrices' rows go to the same lanes; a float one asks for the whole warp.
  experts.lanes = is_float(experts.gate) || is_float(experts.up) ? 32 : lanes_for(experts.gate.columns);
  const int group = kOut * (32 / experts.lanes);
  experts.tasks = (experts.gate.rows + group - 1) / group;
  args.tasks += experts.slots * experts.tasks;
}

void start(const Program& program, const Context& context, Args& args, TensorId in, TensorId norm,
           float epsilon) {
  args.step = context.step;
  args.in = context.memory.rows(in);
  args.norm = context.memory.vector(norm);
  args.epsilon = epsilon;
  args.by_outputs = program[in].shape[0] == kOutputRows;
  args.gemv = context.rows(program[in]) == 1;
  if (args.gemv && args.in.heads == 1 && norm == kNoTensor) {
    GemvGated one;
    const auto take = [](const Experts& e) {
      return GemvGated::Experts{e.gate, e.up, e.out, e.ids, e.slots};
    };
    one.shared = take(args.shared), one.routed = take(args.routed), one.in = args.in.data;
    if (gate_gemv(context, one)) return;
  }
  const int64_t row_bytes = Activations::row_bytes(args.in.columns, args.bytes, args.floats);
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min(args.tasks, 2 * context.sm_count)),
                               static_cast<unsigned>(context.rows(program[in]))),
                          dim3(kThreads), args.in.heads * row_bytes};
  launch(context, gated, shape, args);
}

void launch_gate_up(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<GateUp>(record.args);
  Args args{};
  add_experts(args, args.shared, context, op.gate.id, op.up.id, kNoTensor, op.out.id);
  start(program, context, args, op.in.id, kNoTensor, 0);
}

void launch_norm_gate_up(const Program&, const Op& record, const Context& context) {
  const auto& op = std::get<NormGateUp>(record.args);
  const Memory& memory = context.memory;
  GemvGated one;
  one.shared = {memory.matrix(op.gate_up.gate.id), memory.matrix(op.gate_up.up.id),
                memory.rows(op.gate_up.out.id), nullptr, 1};
  one.in = memory.rows(op.in.id).data, one.norm = memory.vector(op.norm.id), one.epsilon = op.epsilon;
  if (!gate_gemv(context, one)) throw std::logic_error("norm_gate_up: not what serves() promised");
}

void launch_moe_gate_up(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MoeGateUp>(record.args);
  Args args{};
  if (op.shared_gate) {
    add_experts(args, args.shared, context, op.shared_gate.id, op.shared_up.id, kNoTensor, op.shared_out.id);
  }
  add_experts(args, args.routed, context, op.gate.id, op.up.id, op.ids.id, op.out.id);
  start(program, context, args, op.in.id, kNoTensor, 0);
}

void launch_expert_matmul(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  Args args{};
  add_experts(args, args.routed, context, op.weight.id, kNoTensor, op.ids.id, op.out.id);
  start(program, context, args, op.in.id, kNoTensor, 0);
}

bool fits(const Program& program, TensorId in) {
  const int64_t heads = program[in].heads(), columns = program[in].columns();
  return heads * (columns * 4 + columns / 32 * 40 + 64) <= kMostShared;
}

bool serves_gate_up(const Program& program, const Op& record, const Sizes&) {
  return fits(program, std::get<GateUp>(record.args).in.id);
}
/// One row; other steps expand it.
bool serves_norm_gate_up(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormGateUp>(record.args);
  const Tensor &in = program[op.in.id], &gate = program[op.gate_up.gate.id], &up = program[op.gate_up.up.id];
  const auto fits_int = [&](TensorId id) {
    return program.elements(program.storage(id), {}) / 32 < double{1u << 31};
  };
  return sizes.rows == 1 && in.columns() % 32 == 0 && in.offset % 4 == 0 && gate.type == up.type &&
         gates_gemv(gate.type) && fits_int(op.gate_up.gate.id) && fits_int(op.gate_up.up.id) &&
         fits(program, op.in.id);
}
bool serves_moe_gate_up(const Program& program, const Op& record, const Sizes&) {
  return fits(program, std::get<MoeGateUp>(record.args).in.id);
}
bool serves_expert_matmul(const Program& program, const Op& record, const Sizes&) {
  return fits(program, std::get<ExpertMatmul>(record.args).in.id);
}

}  // namespace

const Kernel kGateUp{"gated gemv", serves_gate_up, launch_gate_up};
const Kernel kNormGateUp{"gated gemv of the normed row", serves_norm_gate_up, launch_norm_gate_up};
const Kernel kMoeGateUp{"gated gemv of experts", serves_moe_gate_up, launch_moe_gate_up};
const Kernel kExpertMatmul{"gemv of experts", serves_expert_matmul, launch_expert_matmul};

}  // namespace sluice::backend::cuda
