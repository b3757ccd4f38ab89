// moe_gate_up and moe_down_add, and their primitives: every selected expert's matrix is decoded once for all
// rows that selected it, and nothing is gathered. Workers share the outputs of every expert, so each expert's
// rows are summed by one worker.
#include <algorithm>

#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// The (row, k) pairs of a step by expert: a counting sort in a worker's scratch.
/// pairs[begin[e] .. begin[e + 1]) holds row * used + k, rows ascending.
struct ByExpert {
  int32_t* begin;  // [experts + 1]
  int32_t* pairs;  // [rows * used]

  static int64_t ints(int64_t experts, int64_t rows, int64_t used) { return experts + 1 + rows * used; }
};

ByExpert sort_by_expert(const Rows<int32_t>& ids, int64_t rows, int64_t experts, float* scratch) {
  const int64_t used = ids.columns;
  ByExpert sorted{reinterpret_cast<int32_t*>(scratch), nullptr};
  sorted.pairs = sorted.begin + experts + 1;
  std::fill_n(sorted.begin, experts + 1, 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < used; ++k) ++sorted.begin[ids(r)[k] + 1];
  }
  for (int64_t e = 0; e < experts; ++e) sorted.begin[e + 1] += sorted.begin[e];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < used; ++k)
      sorted.pairs[sorted.begin[ids(r)[k]]++] = static_cast<int32_t>(r * used + k);
  }
  // Filling moved every begin to the next expert's; move them back.
  for (int64_t e = experts; e > 0; --e) sorted.begin[e] = sorted.begin[e - 1];
  sorted.begin[0] = 0;
  return sorted;
}

void moe_gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeGateUp>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Weight gate = c.memory.weight(op.gate.id), up = c.memory.weight(op.up.id);
  const int64_t rows = c.rows(p, op.in.id), used = out.heads;
  float* w = c.scratch();
  if (op.shared_gate) {
    const Rows<float> shared = c.memory.rows(op.shared_out.id);
    const auto input = [&](int64_t r) { return in(r); };
    multiply(c, c.memory.weight(op.shared_gate.id), 0, rows, w, input,
             [&](int64_t r, int64_t n, float value) { shared(r)[n] = silu(value); });
    multiply(c, c.memory.weight(op.shared_up.id), 0, rows, w, input,
             [&](int64_t r, int64_t n, float value) { shared(r)[n] *= value; });
  }
  const ByExpert sorted =
      sort_by_expert(c.memory.int_rows(op.ids.id), rows, gate.matrices, w + kWeightRows * gate.columns);
  for (int64_t e = 0; e < gate.matrices; ++e) {
    const int32_t* pairs = sorted.pairs + sorted.begin[e];
    const int64_t count = sorted.begin[e + 1] - sorted.begin[e];
    if (count == 0) continue;
    const auto input = [&](int64_t i) { return in(pairs[i] / used); };
    const auto output = [&](int64_t i) { return out(pairs[i] / used, pairs[i] % used); };
    multiply(c, gate, e, count, w, input,
             [&](int64_t i, int64_t n, float value) { output(i)[n] = silu(value); });
    multiply(c, up, e, count, w, input, [&](int64_t i, int64_t n, float value) { output(i)[n] *= value; });
  }
}

int64_t moe_gate_up_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<MoeGateUp>(record.args);
  return kWeightRows * p[op.gate.id].columns() +
         ByExpert::ints(p[op.gate.id].shape[0], options.max_rows, p[op.ids.id].columns());
}

void moe_down_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Rows<float> weights = c.memory.rows(op.weights.id), residual = c.memory.rows(op.residual.id);
  const Weight down = c.memory.weight(op.down.id);
  const int64_t rows = c.rows(p, op.residual.id), used = in.heads;
  float* w = c.scratch();
  if (op.shared_in) {
    const Rows<float> shared = c.memory.rows(op.shared_in.id);
    multiply(
        c, c.memory.weight(op.shared_down.id), 0, rows, w, [&](int64_t r) { return shared(r); },
        [&](int64_t r, int64_t n, float value) { out(r)[n] = residual(r)[n] + value; });
  } else {
    const Slice mine = c.slice(down.rows, kWeightRows);
    for (int64_t r = 0; r < rows; ++r)
      std::copy(residual(r) + mine.first, residual(r) + mine.last, out(r) + mine.first);
  }
  // Experts add in the order of their ids: a row's sum never depends on the other rows.
  int64_t widest = down.columns;
  if (op.shared_in) widest = std::max(widest, p[op.shared_in.id].columns());
  const ByExpert sorted =
      sort_by_expert(c.memory.int_rows(op.ids.id), rows, down.matrices, w + kWeightRows * widest);
  for (int64_t e = 0; e < down.matrices; ++e) {
    const int32_t* pairs = sorted.pairs + sorted.begin[e];
    const int64_t count = sorted.begin[e + 1] - sorted.begin[e];
    if (count == 0) continue;
    multiply(
        c, down, e, count, w, [&](int64_t i) { return in(pairs[i] / used, pairs[i] % used); },
        [&](int64_t i, int64_t n, float value) {
          const int64_t r = pairs[i] / used;
          out(r)[n] += weights(r)[pairs[i] % used] * value;
        });
  }
}

int64_t moe_down_add_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  int64_t widest = p[op.down.id].columns();
  if (op.shared_in) widest = std::max(widest, p[op.shared_in.id].columns());
  return kWeightRows * widest +
         ByExpert::ints(p[op.down.id].shape[0], options.max_rows, p[op.ids.id].columns());
}

void expert_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Weight weight = c.memory.weight(op.weight.id);
  const int64_t rows = c.rows(p, op.in.id), used = out.heads;
  float* w = c.scratch();
  const ByExpert sorted =
      sort_by_expert(c.memory.int_rows(op.ids.id), rows, weight.matrices, w + kWeightRows * weight.columns);
  for (int64_t e = 0; e < weight.matrices; ++e) {
    const int32_t* pairs = sorted.pairs + sorted.begin[e];
    const int64_t count = sorted.begin[e + 1] - sorted.begin[e];
    if (count == 0) continue;
    multiply(
        c, weight, e, count, w,
        [&](int64_t i) { return in(pairs[i] / used, in.heads == 1 ? 0 : pairs[i] % used); },
        [&](int64_t i, int64_t n, float value) { out(pairs[i] / used, pairs[i] % used)[n] = value; });
  }
}

int64_t expert_matmul_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  return kWeightRows * p[op.weight.id].columns() +
         ByExpert::ints(p[op.weight.id].shape[0], options.max_rows, p[op.ids.id].columns());
}

void expert_combine(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertCombine>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), weights = c.memory.rows(op.weights.id);
  const Rows<float> out = c.memory.rows(op.out.id);
  const Slice columns = c.slice(out.columns);
  for (int64_t r = 0; r < c.rows(p, op.in.id); ++r) {
    for (int64_t n = columns.first; n < columns.last; ++n) {
      float sum = 0;
      for (int64_t k = 0; k < in.heads; ++k) sum += weights(r)[k] * in(r, k)[n];
      out(r)[n] = sum;
    }
  }
}

int64_t expert_combine_scratch(const Program&, const Op&, const CompileOptions&) { return 0; }

}  // namespace

const Kernel kExpertMatmul{"expert_matmul decode_rows f32", Share::Other, expert_matmul,
                           expert_matmul_scratch};
const Kernel kExpertCombine{"expert_combine generic", Share::Other, expert_combine, expert_combine_scratch};
const Kernel kMoeGateUp{"moe_gate_up decode_rows f32", Share::Other, moe_gate_up, moe_gate_up_scratch};
const Kernel kMoeDownAdd{"moe_down_add decode_rows f32", Share::Other, moe_down_add, moe_down_add_scratch};

}  // namespace sluice::backend::cpu
