// matmul, matmul_add, norm_matmul of one row, where gemv.cu has no kernel, and of what no kernel
// of several rows takes, row by row: weights are streamed straight from packed planes.
//
// A thread block makes the row's activations for itself in shared memory (the norm included), then every warp
// takes weight rows, dealt round the blocks so that each SM reads as much. Bound by reading weights; in a
// chain of small products by the way from one kernel's results to the next one's activations (about 1.5 us).
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

constexpr int kMostNormedRows = 8;
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kMostParts = NormMatmul::kMostProducts;

/// One weight and where its products go.
struct Part {
  Matrix weight;
  float* out;         // [rows][weight.rows]
  const float* add;   // the same shape, or null
  const float* bias;  // [weight.rows], or null
  int64_t out_stride, add_stride;
  int lanes, tasks;  // lanes a weight row; a task is a warp's: 32 / lanes weight rows
};

struct Args {
  StepView step;
  Part parts[kMostParts];
  int count, tasks;
  const float* in;
  int64_t in_stride;
  const float* norm;
  float epsilon;
  int columns;
  bool bytes, floats, by_outputs, gemv;
};

template <int kOut>
__device__ void run_task(const Args& args, int task, const Activations& x, int64_t row) {
  int p = 0;
  while (task >= args.parts[p].tasks) task -= args.parts[p++].tasks;
  const Part& part = args.parts[p];
  const int n = (task * (32 / part.lanes) + threadIdx.x % 32 / part.lanes) * kOut;
  const int count = min(kOut, part.weight.rows - n), lane = threadIdx.x % part.lanes;
  const Sums<kOut> sums = dot<kOut, true>(part.weight, part.weight.row(0, n), count, part.lanes, x);
  if (lane != 0) return;
#pragma unroll
  for (int o = 0; o < kOut; ++o) {
    if (o >= count) break;
    float add = part.add != nullptr ? __ldcg(part.add + row * part.add_stride + n + o) : 0.0f;
    if (part.bias != nullptr) add += __ldg(part.bias + n + o);
    part.out[row * part.out_stride + n + o] = sums.of[o] + add;
  }
}

template <int kOut>
__global__ void __launch_bounds__(kThreads, 2)
    products(const Timestamps timestamps, const __grid_constant__ Args args) {
  __shared__ float partial[33];
  const PdlLink pdl(timestamps);
  pdl.wait();
  const Activations x{0, args.columns, args.bytes, args.floats};
  const int64_t rows = args.gemv ? 1 : args.by_outputs ? args.step.header->outputs : args.step.header->rows;
  const int64_t row = blockIdx.y;
  if (row >= rows) return;
  x.fill(0, args.in + row * args.in_stride, args.norm, args.epsilon, partial);
  __syncthreads();
  for (int task = threadIdx.x / 32 * gridDim.x + blockIdx.x; task < args.tasks; task += gridDim.x * kWarps)
    run_task<kOut>(args, task, x, row);
}

bool is_float_type(quant::Type type) { return find_format(type) == nullptr; }

/// For the kernels of one row and type.
GemvProducts gemv_products(const Args& args, const char* form_at) {
  GemvProducts one;
  for (int p = 0; p < args.count; ++p)
    one.parts[p] = {args.parts[p].weight, args.parts[p].out, args.parts[p].add, args.parts[p].bias};
  one.count = args.count, one.in = args.in, one.norm = args.norm, one.epsilon = args.epsilon;
  one.form_at = form_at;
  return one;
}

void start(const Context& context, Args& args, int64_t rows, const char* form_at = nullptr);

/// Weights of several types: in one launch, or those of each in their own. False: there is one type.
bool started_by_type(const Context& context, const Args& args, const char* form_at) {
  Args alike = args, others = args;
  alike.count = others.count = 0;
  for (int p = 0; p < args.count; ++p) {
    Args& of = args.parts[p].weight.type == args.parts[0].weight.type ? alike : others;
    of.parts[of.count++] = args.parts[p];
  }
  if (others.count == 0) return false;
  if (multiply_gemv(context, gemv_products(alike, form_at), gemv_products(others, form_at))) return true;
  start(context, alike, 1, form_at);
  start(context, others, 1, form_at);
  return true;
}

/// handed: null, or one row's input as the op before has quantised it.
void start(const Context& context, Args& args, int64_t rows, const char* form_at) {
  if (rows == 1 &&
      (multiply_gemv(context, gemv_products(args, form_at)) || started_by_type(context, args, form_at)))
    return;
  int weight_rows = 0;
  for (int p = 0; p < args.count; ++p) weight_rows += args.parts[p].weight.rows;
  // Several weight rows a warp's task where there are enough for all warps.
  const int warps = 2 * kWarps * context.sm_count;
  const int each = rows == 1 && weight_rows >= 4 * warps ? 4 : 1;
  for (int p = 0; p < args.count; ++p) {
    Part& part = args.parts[p];
    part.lanes = lanes_for(part.weight.type, part.weight.columns);
    const int group = each * (32 / part.lanes);
    part.tasks = (part.weight.rows + group - 1) / group;
    args.tasks += part.tasks;
    (is_float_type(part.weight.type) ? args.floats : args.bytes) = true;
  }
  args.step = context.step;
  args.gemv = rows == 1;
  const LaunchShape shape{
      dim3(static_cast<unsigned>(std::min(args.tasks, 2 * context.sm_count)), static_cast<unsigned>(rows)),
      dim3(kThreads), Activations::row_bytes(args.columns, args.bytes, args.floats)};
  launch(context, each == 4 ? products<4> : products<1>, shape, args);
}

void set_input(Args& args, const Context& context, const Program& program, TensorId in) {
  const Rows<float> rows = context.memory.rows(in);
  args.in = rows.data;
  args.in_stride = rows.row_stride;
  args.columns = rows.heads * rows.columns;
  args.by_outputs = program[in].shape[0] == kOutputRows;
}

Part part_of(const Context& context, TensorId weight, TensorId out, TensorId add = kNoTensor) {
  Part part{};
  part.weight = context.memory.matrix(weight);
  const Rows<float> to = context.memory.rows(out);
  part.out = to.data, part.out_stride = to.row_stride;
  if (add != kNoTensor) {
    const Rows<float> from = context.memory.rows(add);
    part.add = from.data, part.add_stride = from.row_stride;
  }
  return part;
}

void launch_matmul(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<Matmul>(record.args);
  Args args{};
  set_input(args, context, program, op.in.id);
  args.parts[args.count++] = part_of(context, op.weight.id, op.out.id);
  start(context, args, context.rows(program[op.in.id]));
}

void launch_matmul_add(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MatmulAdd>(record.args);
  Args args{};
  set_input(args, context, program, op.in.id);
  args.parts[args.count] = part_of(context, op.weight.id, op.out.id, op.residual.id);
  args.parts[args.count++].bias = context.memory.vector(op.bias.id);
  const char* const form_at = context.consumes != nullptr ? context.consumes->at : nullptr;
  if (context.produces != nullptr) {
    const Part& part = args.parts[0];
    GemvProducts one;
    one.parts[one.count++] = {part.weight, part.out, part.add, part.bias};
    one.in = args.in, one.form_at = form_at;
    // The router behind it takes its sums from here, so there is no other way now.
    if (!add_and_route_gemv(context, one, router_sums(context, *context.produces)))
      throw std::logic_error("matmul_add: not what it has declared");
    return;
  }
  start(context, args, context.rows(program[op.in.id]), form_at);
}

void launch_norm_matmul(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormMatmul>(record.args);
  Args args{};
  set_input(args, context, program, op.in.id);
  args.norm = context.memory.vector(op.norm.id);
  args.epsilon = op.epsilon;
  for (const auto& [weight, out] : op.products())
    if (weight) args.parts[args.count++] = part_of(context, weight.id, out.id);
  start(context, args, context.rows(program[op.in.id]));
}

bool fits(const Program& program, TensorId in) {
  const int64_t columns = program[in].heads() * program[in].columns();
  return columns * 4 + columns / 32 * 40 + 64 <= kMostShared;
}

bool serves_matmul(const Program& program, const Op& record, const Sizes&) {
  return fits(program, std::get<Matmul>(record.args).in.id);
}
bool serves_matmul_add(const Program& program, const Op& record, const Sizes&) {
  return fits(program, std::get<MatmulAdd>(record.args).in.id);
}
std::optional<FormSpec> matmul_add_gives(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MatmulAdd>(record.args);
  if (sizes.rows != 1 || !op.residual || !adds_and_routes_gemv(program[op.weight.id], program[op.in.id]))
    return std::nullopt;
  return FormSpec{Form::RouterSums, op.out.id, 0};
}
std::optional<FormSpec> matmul_add_takes(const Program& program, const Op& record, const Sizes& sizes) {
  return sizes.rows == 1 ? given_row_codes(program, std::get<MatmulAdd>(record.args).in.id) : std::nullopt;
}
/// Many rows are normed once instead of by every thread block.
bool serves_norm_matmul(const Program& program, const Op& record, const Sizes& sizes) {
  return sizes.rows <= kMostNormedRows && fits(program, std::get<NormMatmul>(record.args).in.id);
}

}  // namespace

const Kernel kNormMatmul{"gemv of the normed row", serves_norm_matmul, launch_norm_matmul};
const Kernel kMatmul{"gemv", serves_matmul, launch_matmul};
const Kernel kMatmulAdd{"gemv with residual", serves_matmul_add, launch_matmul_add, nullptr,
                        matmul_add_gives,     matmul_add_takes};

}  // namespace sluice::backend::cuda
