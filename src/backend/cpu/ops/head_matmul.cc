// head_matmul: one small matrix a head. The work is shared as (head, group of stored rows or columns).
#include <algorithm>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// Stored as [outputs, inputs] a head: dot products along the stored rows.
void reduce_columns(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<HeadMatmul>(record.args);
  const Weight weight = c.memory.weight(op.weight.id);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const int64_t rows = c.rows(p, op.in.id);
  const int64_t groups = (weight.rows + kWeightRows - 1) / kWeightRows;  // of one head
  const Slice items = c.slice(weight.matrices * groups);
  float* w = c.scratch();
  for (int64_t item = items.first; item < items.last; ++item) {
    const int64_t head = item / groups, first = item % groups * kWeightRows;
    const int64_t count = std::min(kWeightRows, weight.rows - first);
    decode_rows(weight, head, first, count, w);
    for (int64_t r = 0; r < rows; ++r) dots_of(in(r, head), w, weight.columns, count, out(r, head) + first);
  }
}

int64_t columns_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return kWeightRows * p[std::get<HeadMatmul>(record.args).weight.id].columns();
}

/// Stored as [inputs, outputs] a head: each stored row, times one input, is added to the outputs. A blocked
/// type cannot be read down its columns, so a worker takes whole heads.
void reduce_rows(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<HeadMatmul>(record.args);
  const Weight weight = c.memory.weight(op.weight.id);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const int64_t rows = c.rows(p, op.in.id);
  const Slice heads = c.slice(weight.matrices);
  float* w = c.scratch();
  for (int64_t head = heads.first; head < heads.last; ++head) {
    for (int64_t i = 0; i < weight.rows; ++i) {
      weight.decode_row(head, i, w);
      for (int64_t r = 0; r < rows; ++r) {
        const float x = in(r, head)[i];
        float* y = out(r, head);
        if (i == 0) std::fill_n(y, weight.columns, 0.0f);
        for (int64_t n = 0; n < weight.columns; ++n) y[n] += x * w[n];
      }
    }
  }
}

int64_t rows_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<HeadMatmul>(record.args).weight.id].columns();
}

}  // namespace

const Kernel kHeadMatmulColumns{"head_matmul decode_rows f32", Share::Other, reduce_columns, columns_scratch};
const Kernel kHeadMatmulRows{"head_matmul add_rows f32", Share::Other, reduce_rows, rows_scratch};

}  // namespace sluice::backend::cpu
