// matmul, matmul_add, gate_up: [rows, inputs] times [outputs, inputs]. The workers share the panels of
// outputs, so nobody waits for a sum; in steps of many rows many workers share these, too, so that not
// everyone prepares all of them.
#include "backend/cpu/multiply.h"
#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

int64_t inputs_of(const Program& p, TensorId in, const CompileOptions& options) {
  return input_floats(Program::rows(p[in], options.max_rows, options.max_outputs),
                      p[in].heads() * p[in].columns());
}

/// This worker's products of `in` with a weight: store_from(r) is where those of row r and the rows behind it
/// go.
template <typename StoreFrom>
void multiply_step(const Program& p, const Context& c, TensorId in, TensorId weight_id,
                   StoreFrom store_from) {
  const Rows<float> x = c.memory.rows(in);
  const Matrix weight = c.matrix(weight_id);
  const int64_t rows = c.rows(p, in);
  const Products of = products(c, rows);
  const uint16_t* rounded = c.rounded(p, in);
  const ProductWork work =
      product_work(c.stealing(), rows, weight.panels(), 1, of.tiled(weight), rounded != nullptr);
  const int64_t first = work.rows.first;
  if (rounded != nullptr) rounded += first * weight.columns;
  multiply_rows(
      of, weight, 0, work.panels, work.rows.last - first, [&](int64_t i) { return x(first + i); }, rounded,
      c.scratch(), store_from(first));
}

void matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Matmul>(record.args);
  const Rows<float> out = c.memory.rows(op.out.id);
  multiply_step(p, c, op.in.id, op.weight.id,
                [&](int64_t first) { return StoreTo{[&out, first](int64_t i) { return out(first + i); }}; });
}

int64_t matmul_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  return inputs_of(p, std::get<Matmul>(record.args).in.id, options);
}

void matmul_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MatmulAdd>(record.args);
  if (!op.residual) return matmul(p, {.args = Matmul{op.in, op.weight, op.out}}, c);
  const Rows<float> out = c.memory.rows(op.out.id), residual = c.memory.rows(op.residual.id);
  multiply_step(p, c, op.in.id, op.weight.id, [&](int64_t first) {
    return StoreTo{[&out, first](int64_t i) { return out(first + i); },
                   [&residual, first](int64_t i) { return residual(first + i); }};
  });
}

int64_t matmul_add_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  return inputs_of(p, std::get<MatmulAdd>(record.args).in.id, options);
}

void gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<GateUp>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Matrix gate = c.matrix(op.gate.id), up = c.matrix(op.up.id, 1);
  const int64_t rows = c.rows(p, op.in.id);
  const Products of = products(c, rows);
  const uint16_t* rounded = c.rounded(p, op.in.id);
  const ProductWork work =
      product_work(c.stealing(), rows, gate.panels(), 2, of.tiled(gate, up), rounded != nullptr);
  const int64_t first = work.rows.first;
  uint16_t* rounded_out = c.rounded(p, op.out.id);
  if (rounded != nullptr) rounded += first * gate.columns;
  if (rounded_out != nullptr) rounded_out += first * gate.rows;
  LazyInputs x(in, rounded, work.rows, gate.columns, c.scratch());
  multiply_gated(
      of, gate, up, 0, work.panels, work.rows.last - first, x, [](int64_t i) { return i; }, Gated{},
      rounded_out, StoreTo{[&](int64_t i) { return out(first + i); }});
}

int64_t gate_up_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const Tensor& in = p[std::get<GateUp>(record.args).in.id];
  return LazyInputs::floats(Program::rows(in, options.max_rows, options.max_outputs),
                            in.heads() * in.columns());
}

}  // namespace

const Kernel kMatmul{"matmul", Share::Other, matmul, matmul_scratch, true};
const Kernel kMatmulAdd{"matmul_add", Share::Other, matmul_add, matmul_add_scratch, true};
const Kernel kGateUp{"gate_up", Share::Other, gate_up, gate_up_scratch, true};

}  // namespace sluice::backend::cpu
