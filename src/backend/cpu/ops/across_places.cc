// copy, all_reduce, all_gather of a program whose places are all in this one memory: as their references do
// it, in the same order. Between executables they are not a backend's business (backend/places).
#include <algorithm>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

void copy(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Copy>(record.args);
  const auto copy_rows = [&](const auto& in, const auto& out) {
    const Slice rows = c.row_slice(c.rows(p, op.in.id));
    for (int64_t r = rows.first; r < rows.last; ++r) {
      for (int64_t h = 0; h < in.heads; ++h) std::copy_n(in(r, h), in.columns, out(r, h));
    }
  };
  if (p[op.in.id].type == quant::Type::I32) {
    copy_rows(c.memory.int_rows(op.in.id), c.memory.int_rows(op.out.id));
  } else {
    copy_rows(c.memory.rows(op.in.id), c.memory.rows(op.out.id));
  }
}

void all_reduce(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<AllReduce>(record.args);
  const Rows<float> sum = c.memory.rows(op.out[0].id);
  const Slice rows = c.row_slice(c.rows(p, op.in[0].id));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    for (int64_t h = 0; h < sum.heads; ++h) {
      std::copy_n(c.memory.rows(op.in[0].id)(r, h), sum.columns, sum(r, h));
      for (size_t i = 1; i < op.in.size(); ++i) {
        const float* part = c.memory.rows(op.in[i].id)(r, h);
        for (int64_t k = 0; k < sum.columns; ++k) sum(r, h)[k] += part[k];
      }
      for (size_t i = 1; i < op.out.size(); ++i)
        std::copy_n(sum(r, h), sum.columns, c.memory.rows(op.out[i].id)(r, h));
    }
  }
}

void all_gather(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<AllGather>(record.args);
  const Slice rows = c.row_slice(c.rows(p, op.in[0].id));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    for (const Write& out : op.out) {
      float* next = c.memory.rows(out.id)(r);
      for (const Read& in : op.in) next = std::copy_n(c.memory.rows(in.id)(r), p[in.id].columns(), next);
    }
  }
}

}  // namespace

const Kernel kCopy{"copy", Share::Rows, copy, no_scratch};
const Kernel kAllReduce{"all_reduce", Share::Rows, all_reduce, no_scratch};
const Kernel kAllGather{"all_gather", Share::Rows, all_gather, no_scratch};

}  // namespace sluice::backend::cpu
