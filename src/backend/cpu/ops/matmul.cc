// matmul, matmul_add, gate_up: [rows, inputs] times [outputs, inputs]. The workers share the panels of
// outputs, so nobody waits for a sum and every weight byte is read by one worker.
#include "backend/cpu/multiply.h"
#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

int64_t inputs_of(const Program& p, TensorId in, const CompileOptions& options) {
  return input_floats(Program::rows(p[in], options.max_rows, options.max_outputs),
                      p[in].heads() * p[in].columns());
}

void matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Matmul>(record.args);
  const Rows<float> out = c.memory.rows(op.out.id);
  const Matrix weight = c.matrix(op.weight.id);
  const int64_t rows = c.rows(p, op.in.id);
  multiply_rows(products(c, rows), weight, 0, {weight.panels(), c.stealing()}, rows, c.memory.rows(op.in.id),
                c.rounded(p, op.in.id), c.scratch(), StoreTo{[&](int64_t r) { return out(r); }});
}

int64_t matmul_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  return inputs_of(p, std::get<Matmul>(record.args).in.id, options);
}

void matmul_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MatmulAdd>(record.args);
  const Rows<float> out = c.memory.rows(op.out.id), residual = c.memory.rows(op.residual.id);
  const Matrix weight = c.matrix(op.weight.id);
  const int64_t rows = c.rows(p, op.in.id);
  multiply_rows(products(c, rows), weight, 0, {weight.panels(), c.stealing()}, rows, c.memory.rows(op.in.id),
                c.rounded(p, op.in.id), c.scratch(),
                StoreTo{[&](int64_t r) { return out(r); }, [&](int64_t r) { return residual(r); }});
}

int64_t matmul_add_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  return inputs_of(p, std::get<MatmulAdd>(record.args).in.id, options);
}

void gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<GateUp>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Matrix gate = c.matrix(op.gate.id), up = c.matrix(op.up.id, 1);
  const int64_t rows = c.rows(p, op.in.id);
  GatedInputs x(in, c.rounded(p, op.in.id), rows, gate.columns, c.scratch());
  multiply_gated(
      products(c, rows), gate, up, 0, {gate.panels(), c.stealing()}, rows, x, [](int64_t r) { return r; },
      c.rounded(p, op.out.id), StoreTo{[&](int64_t r) { return out(r); }});
}

int64_t gate_up_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  return inputs_of(p, std::get<GateUp>(record.args).in.id, options);
}

}  // namespace

const Kernel kMatmul{"matmul", Share::Other, matmul, matmul_scratch, true};
const Kernel kMatmulAdd{"matmul_add", Share::Other, matmul_add, matmul_add_scratch, true};
const Kernel kGateUp{"gate_up", Share::Other, gate_up, gate_up_scratch, true};

}  // namespace sluice::backend::cpu
