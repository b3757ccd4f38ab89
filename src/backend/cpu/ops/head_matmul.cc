// head_matmul: one small matrix a head.
#include <algorithm>

#include "backend/cpu/multiply.h"
#include "backend/cpu/ops/latent.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

void reduce_columns(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<HeadMatmul>(record.args);
  multiply_heads(op, c, c.rows(p, op.in.id), c.memory.rows(op.in.id), c.memory.rows(op.out.id));
}

int64_t columns_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  return multiply_heads_scratch(p, std::get<HeadMatmul>(record.args), options);
}

/// Numbers of a stored row that a worker decodes at once: whole blocks of every type.
constexpr int64_t kColumnsAtOnce = 256;

/// Stored as [inputs, outputs] a head: each stored row, times one input, is added to the outputs. The workers
/// share (head, part of the outputs).
void reduce_rows(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<HeadMatmul>(record.args);
  const Weight weight = c.memory.weight(op.weight.id);
  const quant::TypeInfo& type = quant::type_info(p[op.weight.id].type);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const SmallKernels& kernels = small_kernels(c.isa);
  const int64_t rows = c.rows(p, op.in.id), parts = (weight.columns + kColumnsAtOnce - 1) / kColumnsAtOnce;
  const Slice mine = c.slice(weight.matrices * parts);
  float* w = c.scratch();
  for (int64_t item = mine.first; item < mine.last; ++item) {
    const int64_t head = item / parts, first = item % parts * kColumnsAtOnce;
    const int64_t count = std::min(kColumnsAtOnce, weight.columns - first);
    for (int64_t r = 0; r < rows; ++r) std::fill_n(out(r, head) + first, count, 0.0f);
    for (int64_t i = 0; i < weight.rows; ++i) {
      type.decode(weight.row(head, i) + quant::bytes_of(type, first), w, count);
      for (int64_t r = 0; r < rows; ++r) kernels.add_scaled(w, in(r, head)[i], count, out(r, head) + first);
    }
  }
}

int64_t rows_scratch(const Program&, const Op&, const CompileOptions&) { return kColumnsAtOnce; }

}  // namespace

/// Panels of outputs, those of all heads shared evenly among the workers.
void multiply_heads(const HeadMatmul& op, const Context& c, int64_t rows, const Rows<float>& in,
                    const Rows<float>& out) {
  const Matrix weight = c.matrix(op.weight.id);
  const int64_t panels = weight.panels();
  const Slice mine = c.slice(weight.matrices * panels);
  for (int64_t first = mine.first; first < mine.last;) {
    const int64_t head = first / panels, last = std::min(mine.last, (head + 1) * panels);
    multiply_rows(
        products(c, rows), weight, head, Slice{first - head * panels, last - head * panels}, rows,
        [&](int64_t r) { return in(r, head); }, nullptr, c.scratch(),
        StoreTo{[&](int64_t r) { return out(r, head); }});
    first = last;
  }
}

int64_t multiply_heads_scratch(const Program& p, const HeadMatmul& op, const CompileOptions& options) {
  return input_floats(Program::rows(p[op.in.id], options.max_rows, options.max_outputs),
                      p[op.in.id].columns());
}

const Kernel kHeadMatmulColumns{"head_matmul", Share::Other, reduce_columns, columns_scratch, true};
const Kernel kHeadMatmulRows{"head_matmul add_rows", Share::Other, reduce_rows, rows_scratch};

}  // namespace sluice::backend::cpu
