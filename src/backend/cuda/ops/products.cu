// matmul, matmul_add, norm_matmul for few rows: whether a kernel serves, what it gets. The kernels:
// products_kernel.cuh, and of one row one_row_products.cu.
#include <stdexcept>

#include "backend/cuda/memory.h"
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/one_row.h"
#include "backend/cuda/ops/products.cuh"
#include "backend/cuda/prim/dot.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using namespace few_products;

constexpr int kMostNormedRows = 8;

bool is_float_type(quant::Type type) { return find_format(type) == nullptr; }

/// Whether the kernel of one row and type has taken it.
bool started_one_row(const Context& context, const Args& args, const char* handed) {
  OneRowProducts one;
  for (int p = 0; p < args.count; ++p)
    one.parts[p] = {args.parts[p].weight, args.parts[p].out, args.parts[p].add};
  one.count = args.count, one.in = args.in, one.norm = args.norm, one.epsilon = args.epsilon;
  one.handed = handed;
  return multiply_one_row(context, one);
}

/// handed: null, or one row's input as the op before has quantised it.
void start(const Context& context, Args& args, int64_t rows, const char* handed = nullptr) {
  if (rows == 1 && started_one_row(context, args, handed)) return;
  int weight_rows = 0;
  for (int p = 0; p < args.count; ++p) weight_rows += args.parts[p].weight.rows;
  // Several weight rows a warp's task where there are enough for all warps.
  const int warps = 2 * kWarps * context.processors;
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
  args.one_row = rows == 1;
  const int64_t row_bytes = Activations::row_bytes(args.columns, args.bytes, args.floats);
  int at_once = 8;
  while (at_once > 1 && (at_once / 2 >= rows || at_once * row_bytes > kMostShared)) at_once /= 2;
  const LaunchShape shape{dim3(static_cast<unsigned>(std::min(args.tasks, 2 * context.processors)),
                               static_cast<unsigned>((rows + at_once - 1) / at_once)),
                          dim3(kThreads), at_once * row_bytes};
  if (each == 4) return start_products<1, 4>(context, shape, args);
  switch (at_once) {
    case 8: return start_products<8, 1>(context, shape, args);
    case 4: return start_products<4, 1>(context, shape, args);
    case 2: return start_products<2, 1>(context, shape, args);
    default: return start_products<1, 1>(context, shape, args);
  }
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
  args.parts[args.count++] = part_of(context, op.weight.id, op.out.id, op.residual.id);
  const char* const handed = quantized_values(program, op.in.id, context);
  if (const RouterSums sums = sums_for_router(program, op, context); sums.words != nullptr) {
    const Part& part = args.parts[0];
    OneRowProducts one;
    one.parts[one.count++] = {part.weight, part.out, part.add};
    one.in = args.in, one.handed = handed;
    // The router behind it takes its sums from here, so there is no other way now.
    if (!add_and_route_one_row(context, one, sums))
      throw std::logic_error("matmul_add: not what sums_for_router() promised");
    return;
  }
  start(context, args, context.rows(program[op.in.id]), handed);
}

void launch_norm_matmul(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<NormMatmul>(record.args);
  Args args{};
  set_input(args, context, program, op.in.id);
  args.norm = context.memory.vector(op.norm.id);
  args.epsilon = op.epsilon;
  args.parts[args.count++] = part_of(context, op.a.id, op.out_a.id);
  if (op.b) args.parts[args.count++] = part_of(context, op.b.id, op.out_b.id);
  if (op.c) args.parts[args.count++] = part_of(context, op.c.id, op.out_c.id);
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
/// Many rows are normed once instead of by every block of threads.
bool serves_norm_matmul(const Program& program, const Op& record, const Sizes& sizes) {
  return sizes.rows <= kMostNormedRows && fits(program, std::get<NormMatmul>(record.args).in.id);
}

}  // namespace

const Kernel kNormMatmul{"gemv of the normed row", serves_norm_matmul, launch_norm_matmul};
const Kernel kMatmul{"gemv", serves_matmul, launch_matmul};
const Kernel kMatmulAdd{"gemv with residual", serves_matmul_add, launch_matmul_add};

}  // namespace sluice::backend::cuda
