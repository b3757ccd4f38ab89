// moe_gate_up and moe_down_add, and their primitives: every selected expert's matrix is read once for all
// rows that selected it, and nothing is gathered. Workers share panels of outputs: of all experts together on
// the way up, where they steal from each other; of every expert the same ones on the way down, so that an
// output's experts are summed by one worker. Nobody steals there: who did would prepare the rows of all
// experts for a few panels.
#include <algorithm>

#include "backend/cpu/multiply.h"
#include "backend/cpu/ops/kernels.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// The (row, k) pairs of a step by expert: a counting sort in a worker's scratch.
/// pairs[begin[e] .. begin[e + 1]) holds row * used + k, rows ascending.
struct ByExpert {
  int32_t* begin;  // [experts + 1]
  int32_t* pairs;  // [rows * used]

  int64_t count(int64_t expert) const { return begin[expert + 1] - begin[expert]; }
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

/// Inputs of moe_down_add: the shared experts' rows, or one expert's, whichever is more. Not those of more
/// columns: fewer columns let more rows into a chunk.
int64_t down_input_floats(const Program& p, const MoeDownAdd& op, int64_t rows) {
  const int64_t floats = input_floats(rows, p[op.down.id].columns());
  return op.shared_in ? std::max(floats, input_floats(rows, p[op.shared_in.id].columns())) : floats;
}

void moe_gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeGateUp>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Matrix gate = c.matrix(op.gate.id), up = c.matrix(op.up.id, 1);
  const int64_t rows = c.rows(p, op.in.id), used = out.heads;
  const ByExpert sorted = sort_by_expert(c.memory.int_rows(op.ids.id), rows, gate.matrices,
                                         c.scratch() + input_floats(rows, gate.columns));
  GatedInputs x(in, rows, gate.columns, c.scratch());
  const Products of_all = products(c, rows), of_experts = expert_products(c, rows, used, gate.matrices);
  // Matrix 0 is the shared experts', if there are any, the others those that rows select.
  const int64_t shared = op.shared_gate ? 1 : 0;
  const Matrix shared_gate = c.matrix((shared ? op.shared_gate : op.gate).id),
               shared_up = c.matrix((shared ? op.shared_up : op.up).id, 1);
  const Rows<float> shared_out = c.memory.rows((shared ? op.shared_out : op.out).id);
  const bool tiled = of_experts.tiled(gate, up), shared_tiled = of_all.tiled(shared_gate, shared_up);
  const auto work = [&](int64_t m) {
    if (m < shared) return MatrixWork{shared_gate.panels(), rows, shared_tiled};
    return MatrixWork{gate.panels(), sorted.count(m - shared), tiled};
  };
  // Where many rows are prepared for a few panels, that must not take as long as the panels.
  const int64_t least = rows > kTileRows ? 16 : 1;
  each_share(c.stealing(), shared + gate.matrices, least, work, [&](int64_t m, Slice panels) {
    if (m < shared) {
      multiply_gated(
          of_all, shared_gate, shared_up, 0, panels, rows, x, [](int64_t r) { return r; },
          StoreTo{[&](int64_t r) { return shared_out(r); }});
      return;
    }
    const int64_t e = m - shared;
    const int32_t* pairs = sorted.pairs + sorted.begin[e];
    multiply_gated(
        of_experts, gate, up, e, panels, sorted.count(e), x, [&](int64_t i) { return pairs[i] / used; },
        StoreTo{[&](int64_t i) { return out(pairs[i] / used, pairs[i] % used); }});
  });
}

int64_t moe_gate_up_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<MoeGateUp>(record.args);
  return input_floats(options.max_rows, p[op.gate.id].columns()) +
         ByExpert::ints(p[op.gate.id].shape[0], options.max_rows, p[op.ids.id].columns());
}

void moe_down_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Rows<float> weights = c.memory.rows(op.weights.id), residual = c.memory.rows(op.residual.id);
  const Matrix down = c.matrix(op.down.id);
  const int64_t rows = c.rows(p, op.residual.id), used = in.heads;
  const Slice panels = c.slice(down.panels());
  if (op.shared_in) {
    const Matrix shared_down = c.matrix(op.shared_down.id);
    multiply_rows(products(c, rows), shared_down, 0, panels, rows, c.memory.rows(op.shared_in.id),
                  c.scratch(),
                  StoreTo{[&](int64_t r) { return out(r); }, [&](int64_t r) { return residual(r); }});
  } else {
    const int64_t first = panels.first * kPanelRows, last = std::min(panels.last * kPanelRows, down.rows);
    for (int64_t r = 0; r < rows; ++r) std::copy(residual(r) + first, residual(r) + last, out(r) + first);
  }
  // Experts add in the order of their ids: a row's sum never depends on the other rows.
  float* ints = c.scratch() + down_input_floats(p, op, rows);
  const ByExpert sorted = sort_by_expert(c.memory.int_rows(op.ids.id), rows, down.matrices, ints);
  const Products of_experts = expert_products(c, rows, used, down.matrices);
  for (int64_t e = 0; e < down.matrices; ++e) {
    const int32_t* pairs = sorted.pairs + sorted.begin[e];
    const auto row = [&](int64_t i) { return in(pairs[i] / used, pairs[i] % used); };
    const auto store = [&](int64_t i, int64_t n, const float* values, auto count) {
      const int64_t r = pairs[i] / used;
      const float weight = weights(r)[pairs[i] % used];
      for (int64_t j = 0; j < count; ++j) out(r)[n + j] += weight * values[j];
    };
    multiply_rows(of_experts, down, e, panels, sorted.count(e), row, c.scratch(), store);
  }
}

int64_t moe_down_add_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  return down_input_floats(p, op, options.max_rows) +
         ByExpert::ints(p[op.down.id].shape[0], options.max_rows, p[op.ids.id].columns());
}

void expert_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Matrix weight = c.matrix(op.weight.id);
  const int64_t rows = c.rows(p, op.in.id), used = out.heads;
  const ByExpert sorted = sort_by_expert(c.memory.int_rows(op.ids.id), rows, weight.matrices,
                                         c.scratch() + input_floats(rows, weight.columns));
  for (int64_t e = 0; e < weight.matrices; ++e) {
    const int32_t* pairs = sorted.pairs + sorted.begin[e];
    const auto row = [&](int64_t i) { return in(pairs[i] / used, in.heads == 1 ? 0 : pairs[i] % used); };
    const StoreTo store{[&](int64_t i) { return out(pairs[i] / used, pairs[i] % used); }};
    multiply_rows(expert_products(c, rows, used, weight.matrices), weight, e, c.slice(weight.panels()),
                  sorted.count(e), row, c.scratch(), store);
  }
}

int64_t expert_matmul_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  return input_floats(options.max_rows, p[op.weight.id].columns()) +
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

const Kernel kExpertMatmul{"expert_matmul", Share::Other, expert_matmul, expert_matmul_scratch, true};
const Kernel kExpertCombine{"expert_combine generic", Share::Other, expert_combine, expert_combine_scratch};
const Kernel kMoeGateUp{"moe_gate_up", Share::Other, moe_gate_up, moe_gate_up_scratch, true};
const Kernel kMoeDownAdd{"moe_down_add", Share::Other, moe_down_add, moe_down_add_scratch, true};

}  // namespace sluice::backend::cpu
