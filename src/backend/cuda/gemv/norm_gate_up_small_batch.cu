// norm_gate_up of 2 to 16 rows: a launch makes the normed rows codes of eight bits (gemv/code_rows.cu), and
// the kernel of experts with few tokens (moe/experts_small_batch.cu) takes the dense matrices for the only
// expert that there is. Bound by memory, where tiles of many rows read 15 to 25% of what it gives.
#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/code_rows.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/prim/int8_mma.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kMostRows = 16;
ExpertsShape shape_of(const Program& p, const NormGateUp& op) {
  const Tensor& gate = p[op.gate_up.gate.id];
  return {gate.type, 1, gate.shape[1], gate.columns(), 1, true};
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormGateUp>(record.args);
  const Tensor &in = p[op.in.id], &gate = p[op.gate_up.gate.id], &up = p[op.gate_up.up.id];
  return sizes.rows > kNarrowRows && sizes.rows <= kMostRows && gate.type == up.type &&
         in.stride[0] % 4 == 0 && in.offset % 4 == 0 && in.columns() <= kNormedInCodes &&
         serves_experts_small_batch(shape_of(p, op), sizes.rows, sizes.architecture);
}

int64_t scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  const ExpertsShape shape = shape_of(p, std::get<NormGateUp>(record.args));
  return sizes.rows * experts_token(shape.type, shape.columns).pitch;
}

void launch_norm_gate_up(const Program&, const Op& record, const Context& c) {
  const auto& op = std::get<NormGateUp>(record.args);
  const Matrix gate = c.memory.matrix(op.gate_up.gate.id);
  const Rows<float> in = flat(c.memory.rows(op.in.id));
  Scratch scratch(c.scratch);
  const int8_mma::TokenRows token = experts_token(gate.type, gate.columns);
  const CodeRows rows{
      &c.step.header->rows,        in,        scratch.take<char>(c.step_rows * token.pitch), token,
      c.memory.vector(op.norm.id), op.epsilon};
  code_rows(rows, c);
  multiply_experts_small_batch({.weight = gate,
                                .up = c.memory.matrix(op.gate_up.up.id),
                                .gated = true,
                                .by_pair = false,
                                .in = in,
                                .out = c.memory.rows(op.gate_up.out.id),
                                .ids = {nullptr, 0, 0, 1, 1},
                                .rows = rows.rows,
                                .coded = rows.codes},
                               c);
}

}  // namespace

const Kernel kNormGateUpSmallBatch{"rows in codes + small-batch gated GEMV in 8 bits", serves,
                                   launch_norm_gate_up, scratch_bytes};

}  // namespace sluice::backend::cuda
