// add_bias and expert_bias: rows are shared among the workers.
#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

void add_bias(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<AddBias>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  float* bias = c.scratch();
  const Slice rows = c.row_slice(c.rows(p, op.in.id));
  if (rows.first < rows.last) c.memory.weight(op.bias.id).decode_row(0, 0, bias);
  for (int64_t r = rows.first; r < rows.last; ++r) {
    for (int64_t h = 0; h < in.heads; ++h) {
      for (int64_t i = 0; i < in.columns; ++i) out(r, h)[i] = in(r, h)[i] + bias[h * in.columns + i];
    }
  }
}

int64_t add_bias_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<AddBias>(record.args).bias.id].columns();
}

void expert_bias(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertBias>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Rows<int32_t> ids = c.memory.int_rows(op.ids.id);
  const Weight biases = c.memory.weight(op.bias.id);
  float* bias = c.scratch();
  const Slice rows = c.row_slice(c.rows(p, op.in.id));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    for (int64_t k = 0; k < in.heads; ++k) {
      biases.decode_row(0, ids(r)[k], bias);
      for (int64_t i = 0; i < in.columns; ++i) out(r, k)[i] = in(r, k)[i] + bias[i];
    }
  }
}

int64_t expert_bias_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<ExpertBias>(record.args).bias.id].columns();
}

}  // namespace

const Kernel kAddBias{"add_bias generic", Share::Rows, add_bias, add_bias_scratch};
const Kernel kExpertBias{"expert_bias generic", Share::Rows, expert_bias, expert_bias_scratch};

}  // namespace sluice::backend::cpu
