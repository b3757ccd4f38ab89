// matmul, matmul_add, gate_up: [rows, inputs] times [outputs, inputs], the weights decoded a few rows at a
// time. At one row this reads each weight byte once; the workers share the outputs, so nobody waits for a
// sum.
#include <algorithm>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

void matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Matmul>(record.args);
  const Rows<float> out = c.memory.rows(op.out.id);
  multiply(c, c.memory.weight(op.weight.id), 0, c.rows(p, op.in.id), c.scratch(), c.memory.rows(op.in.id),
           [&](int64_t r, int64_t n, float value) { out(r)[n] = value; });
}

int64_t matmul_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return kWeightRows * p[std::get<Matmul>(record.args).weight.id].columns();
}

void matmul_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MatmulAdd>(record.args);
  const Rows<float> out = c.memory.rows(op.out.id), residual = c.memory.rows(op.residual.id);
  multiply(c, c.memory.weight(op.weight.id), 0, c.rows(p, op.in.id), c.scratch(), c.memory.rows(op.in.id),
           [&](int64_t r, int64_t n, float value) { out(r)[n] = residual(r)[n] + value; });
}

int64_t matmul_add_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return kWeightRows * p[std::get<MatmulAdd>(record.args).weight.id].columns();
}

void gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<GateUp>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const int64_t rows = c.rows(p, op.in.id);
  // The same worker computes gate and up of an output, so no barrier stands between the two passes.
  multiply(c, c.memory.weight(op.gate.id), 0, rows, c.scratch(), in,
           [&](int64_t r, int64_t n, float value) { out(r)[n] = silu(value); });
  multiply(c, c.memory.weight(op.up.id), 0, rows, c.scratch(), in,
           [&](int64_t r, int64_t n, float value) { out(r)[n] *= value; });
}

int64_t gate_up_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return kWeightRows * p[std::get<GateUp>(record.args).gate.id].columns();
}

}  // namespace

const Kernel kMatmul{"matmul decode_rows f32", Share::Other, matmul, matmul_scratch};
const Kernel kMatmulAdd{"matmul_add decode_rows f32", Share::Other, matmul_add, matmul_add_scratch};
const Kernel kGateUp{"gate_up decode_rows f32", Share::Other, gate_up, gate_up_scratch};

}  // namespace sluice::backend::cpu
