// head_matmul for few rows: one small matrix a head, reduced along its columns (k_b, v_b as files have them
// today) or along its rows (k_b inside an unsplit kv_b, whose blocks lie along the other dimension).
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

struct Args {
  StepView step;
  Matrix weight;
  Rows<float> in, out;
  int lanes;
  bool bytes, by_outputs;
};

/// grid: (parts of a head's outputs, heads, rows).
__global__ void __launch_bounds__(kThreads)
    along_columns(const Timestamps timestamps, const __grid_constant__ Args args) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int64_t row = blockIdx.z;
  const int head = blockIdx.y;
  if (row >= (args.by_outputs ? args.step.header->outputs : args.step.header->rows)) return;
  const Activations x{0, args.in.columns, args.bytes, !args.bytes};
  x.fill(0, args.in(row, head), nullptr, 0, nullptr);
  __syncthreads();
  const int group = 32 / args.lanes, tasks = (args.weight.rows + group - 1) / group;
  for (int task = threadIdx.x / 32 * gridDim.x + blockIdx.x; task < tasks; task += gridDim.x * kWarps) {
    const int n = task * group + threadIdx.x % 32 / args.lanes;
    const Sums<> sums =
        dot(args.weight, args.weight.row(head, n), n < args.weight.rows ? 1 : 0, args.lanes, x);
    if (n < args.weight.rows && threadIdx.x % args.lanes == 0) args.out(row, head)[n] = sums.of[0];
  }
}

/// Numbers 32 * piece to 32 * piece + 31 of a flat row (fewer at the end of a float row), times factor, added
/// to sums.
__device__ void add_scaled(const Matrix& m, int64_t flat_row, int piece, float factor, float (&sums)[32]) {
  if (is_float(m.type)) {
#pragma unroll
    for (int c = 0; c < 32; ++c) {
      const int column = 32 * piece + c;
      if (column < m.columns)
        sums[c] += factor * float_number(m.type, m.codes, flat_row * m.columns + column);
    }
    return;
  }
  with_blocked_type(m.type, [&]<Type T>() {
    const Raw<T> raw = load_block<T>(planes_from(m), flat_row * (m.columns / 32) + piece);
    const Codes codes = unpack_codes<T>(raw);
    const Scales scales = unpack_scales<T>(raw);
#pragma unroll
    for (int c = 0; c < 32; ++c) sums[c] += factor * number<T>(codes, scales, c);
  });
}

/// grid: (pieces of 32 outputs, heads, rows). Warps and lanes share the matrix's rows.
__global__ void __launch_bounds__(kThreads)
    along_rows(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ float partial[kWarps][32];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const int64_t row = blockIdx.z;
  const int head = blockIdx.y, piece = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (row >= (args.by_outputs ? args.step.header->outputs : args.step.header->rows)) return;
  float sums[32] = {};
  for (int c = threadIdx.x; c < args.in.columns; c += kThreads) {
    add_scaled(args.weight, args.weight.row(head, c), piece, __ldcg(args.in(row, head) + c), sums);
  }
#pragma unroll
  for (int c = 0; c < 32; ++c) {
    const float sum = lane_sum(sums[c]);
    if (lane == c) partial[warp][c] = sum;
  }
  __syncthreads();
  if (warp != 0 || 32 * piece + lane >= args.weight.columns) return;
  float sum = 0;
  for (int w = 0; w < kWarps; ++w) sum += partial[w][lane];
  args.out(row, head)[32 * piece + lane] = sum;
}

Args args_of(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<HeadMatmul>(record.args);
  Args args{};
  args.step = context.step;
  args.weight = context.memory.matrix(op.weight.id);
  args.in = context.memory.rows(op.in.id), args.out = context.memory.rows(op.out.id);
  args.bytes = find_format(args.weight.type) != nullptr;
  args.lanes = lanes_for(args.weight.type, args.weight.columns);
  args.by_outputs = program[op.in.id].shape[0] == kOutputRows;
  return args;
}

void launch_columns(const Program& program, const Op& record, const Context& context) {
  const Args args = args_of(program, record, context);
  const auto heads = static_cast<unsigned>(args.in.heads);
  const auto rows = static_cast<unsigned>(context.rows(program[std::get<HeadMatmul>(record.args).in.id]));
  // As many blocks as fill the device, and a task a warp at least.
  const int tasks = (args.weight.rows * args.lanes + 31) / 32;
  const unsigned wanted =
      std::max(1u, (2u * static_cast<unsigned>(context.sm_count) + heads * rows - 1) / (heads * rows));
  const unsigned parts = std::min(wanted, static_cast<unsigned>((tasks + kWarps - 1) / kWarps));
  launch(context, along_columns,
         LaunchShape{dim3(parts, heads, rows), dim3(kThreads),
                     Activations::row_bytes(args.in.columns, args.bytes, !args.bytes)},
         args);
}

void launch_rows(const Program& program, const Op& record, const Context& context) {
  const Args args = args_of(program, record, context);
  const auto rows = static_cast<unsigned>(context.rows(program[std::get<HeadMatmul>(record.args).in.id]));
  launch(context, along_rows,
         LaunchShape{dim3(static_cast<unsigned>((args.weight.columns + 31) / 32),
                          static_cast<unsigned>(args.in.heads), rows),
                     dim3(kThreads)},
         args);
}

bool serves_columns(const Program& program, const Op& record, const Sizes&) {
  const auto& op = std::get<HeadMatmul>(record.args);
  return op.reduce == Reduce::Columns && program[op.in.id].columns() * 4 <= kMostShared;
}
bool serves_rows(const Program&, const Op& record, const Sizes&) {
  return std::get<HeadMatmul>(record.args).reduce == Reduce::Rows;
}

}  // namespace

const Kernel kHeadMatmulColumns{"gemv of heads", serves_columns, launch_columns};
const Kernel kHeadMatmulRows{"gemv of heads along rows", serves_rows, launch_rows};

}  // namespace sluice::backend::cuda
