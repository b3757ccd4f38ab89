// scale: rows are shared among the workers.
#include <algorithm>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

void scale(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Scale>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Slice rows = c.row_slice(c.rows(p, op.in.id));
  const int64_t each = op.each(p);
  float* const scales = c.scratch();
  if (rows.first < rows.last) c.memory.weight(op.scale.id).decode_row(0, 0, scales);
  for (int64_t r = rows.first; r < rows.last; ++r) {
    const int32_t* const ids = op.ids ? c.memory.int_rows(op.ids.id)(r) : nullptr;
    for (int64_t h = 0; h < in.heads; ++h) {
      for (int64_t i = 0; i < in.columns;) {
        const int64_t at = h * in.columns + i, end = std::min(in.columns, i + each - at % each);
        const float by = scales[ids != nullptr ? ids[at / each] : 0];
        for (; i < end; ++i) out(r, h)[i] = in(r, h)[i] * by;
      }
    }
  }
}

int64_t scale_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return p[std::get<Scale>(record.args).scale.id].columns();
}

}  // namespace

const Kernel kScale{"scale generic", Share::Rows, scale, scale_scratch};

}  // namespace sluice::backend::cpu
