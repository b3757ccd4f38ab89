// moe_gate_up and moe_down_add, and their primitives: every selected expert's matrix is read once for all
// rows that selected it, and nothing is gathered. Workers share panels of outputs: of all experts together on
// the way up and, for few rows, on the way down, where they steal from each other; for many rows of every
// expert the same ones on the way down, so that an output's experts are summed by one worker. Nobody steals
// then: who did would prepare the rows of all experts for a few panels.
#include <algorithm>
#include <optional>

#include "backend/cpu/multiply.h"
#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

/// A row of a step that selects an expert, and as its how many-th.
struct Selection {
  int32_t row, k;
};

/// A step's selections by expert: a counting sort in a worker's scratch. of(e)[0 .. count(e)): rows
/// ascending.
struct ByExpert {
  int32_t* begin;         // [experts + 1]
  Selection* selections;  // [rows * used]

  int64_t count(int64_t expert) const { return begin[expert + 1] - begin[expert]; }
  int64_t groups(int64_t expert) const { return whole_groups(count(expert)) / kGroupRows; }
  int64_t groups_before(int64_t expert) const {
    int64_t all = 0;
    for (int64_t e = 0; e < expert; ++e) all += groups(e);
    return all;
  }
  const Selection* of(int64_t expert) const { return selections + begin[expert]; }
  static int64_t ints(int64_t experts, int64_t rows, int64_t used) { return experts + 1 + 2 * rows * used; }
};

/// Of a negative id, which is no expert, nothing is computed, and nothing is added.
ByExpert sort_by_expert(const Rows<int32_t>& ids, int64_t rows, int64_t experts, float* scratch) {
  const int64_t used = ids.columns;
  ByExpert sorted{reinterpret_cast<int32_t*>(scratch), nullptr};
  sorted.selections = reinterpret_cast<Selection*>(sorted.begin + experts + 1);
  std::fill_n(sorted.begin, experts + 1, 0);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < used; ++k) {
      if (ids(r)[k] >= 0) ++sorted.begin[ids(r)[k] + 1];
    }
  }
  for (int64_t e = 0; e < experts; ++e) sorted.begin[e + 1] += sorted.begin[e];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < used; ++k) {
      if (ids(r)[k] < 0) continue;
      sorted.selections[sorted.begin[ids(r)[k]]++] = {static_cast<int32_t>(r), static_cast<int32_t>(k)};
    }
  }
  // Filling moved every begin to the next expert's; move them back.
  for (int64_t e = experts; e > 0; --e) sorted.begin[e] = sorted.begin[e - 1];
  sorted.begin[0] = 0;
  return sorted;
}

/// The experts' inputs of moe_down_add that workers prepare together, once for all, as products want them: on
/// tiles bf16, elsewhere quantised, both of two bytes a column. An expert's rows, in groups of kGroupRows,
/// lie in the scratch of one worker: of the one whose slice of all groups has their first.
class TogetherInputs {
 public:
  static_assert(sizeof(QuantBlock) == kQuantColumns * sizeof(uint16_t));

  /// Whether that is worth a meeting and the weight wants it.
  static bool wanted(const Context& c, const Products& products, const Matrix& w, int64_t rows) {
    constexpr int64_t kLeastRows = 32;
    if (c.workers == 1 || rows < kLeastRows) return false;
    return products.tiled(w) ? TiledChunk::whole(w.columns) : w.quantized;
  }
  /// Floats of a worker's scratch: two workers share all groups, and one expert may reach into the other's.
  static int64_t floats(int64_t experts, int64_t rows, int64_t used, int64_t columns) {
    const int64_t groups = rows * used / kGroupRows + experts;
    return kLineFloats + ((groups + 1) / 2 + whole_groups(rows) / kGroupRows) * kGroupRows * columns / 2;
  }

  /// offset_floats: where in every worker's scratch they begin.
  TogetherInputs(const Context& c, const ByExpert& sorted, int64_t experts, int64_t columns,
                 int64_t offset_floats)
      : c_(c), sorted_(sorted), experts_(experts), columns_(columns), offset_floats_(offset_floats) {
    groups_ = sorted.groups_before(experts);
  }
  /// Calls body(expert, the worker that has its rows, these) for every expert that has some.
  template <typename Body>
  void each(Body body) const {
    int64_t before = 0, owner = -1;
    uint16_t* at = nullptr;
    for (int64_t e = 0; e < experts_; ++e) {
      const int64_t groups = sorted_.groups(e);
      if (groups == 0) continue;
      const int64_t whose = ((before + 1) * c_.workers - 1) / groups_;
      if (whose != owner) at = begin_of(static_cast<int>(whose));
      body(e, static_cast<int>(whose), at);
      owner = whose, before += groups, at += groups * kGroupRows * columns_;
    }
  }

 private:
  uint16_t* begin_of(int worker) const {
    return reinterpret_cast<uint16_t*>(next_line(c_.memory.scratch(worker) + offset_floats_));
  }

  const Context& c_;
  const ByExpert& sorted_;
  int64_t experts_, columns_, offset_floats_, groups_ = 0;
};

/// Panels that a worker takes at least of what is to be shared: where many rows are prepared for a few of
/// them, that must not take as long as the panels.
int64_t least_panels(int64_t rows) { return rows > kTileRows ? 16 : 1; }

/// Inputs of moe_down_add: the shared experts' rows, or one expert's, whichever is more. Not those of more
/// columns: fewer columns let more rows into a chunk.
int64_t down_input_floats(const Program& p, const MoeDownAdd& op, int64_t rows) {
  const int64_t floats = input_floats(rows, p[op.down.id].columns());
  return op.shared_in ? std::max(floats, input_floats(rows, p[op.shared_in.id].columns())) : floats;
}

/// Floats of a bias row, or of a row of scales, in whole panels.
int64_t bias_floats(const Program& p, Read bias) {
  return bias ? (p[bias.id].columns() + kPanelRows - 1) / kPanelRows * kPanelRows : 0;
}

void moe_gate_up(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeGateUp>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Matrix gate = c.matrix(op.gate.id), up = c.matrix(op.up.id, 1);
  const int64_t rows = c.rows(p, op.in.id), used = out.heads;
  const ByExpert sorted = sort_by_expert(c.memory.int_rows(op.ids.id), rows, gate.matrices,
                                         c.scratch() + LazyInputs::floats(rows, gate.columns));
  LazyInputs x(in, nullptr, {0, rows}, gate.columns, c.scratch());
  const Products of_all = products(c, rows), of_experts = expert_products(c, rows, used, gate.matrices);
  // Matrix 0 is the shared experts', if there are any, the others those that rows select.
  const int64_t shared = op.shared_gate ? 1 : 0;
  const Matrix shared_gate = c.matrix((shared ? op.shared_gate : op.gate).id),
               shared_up = c.matrix((shared ? op.shared_up : op.up).id, 1);
  const Rows<float> shared_out = c.memory.rows((shared ? op.shared_out : op.out).id);
  Gated gated = Gated::of(op.form, c.isa);
  float* const gate_bias =
      c.scratch() + LazyInputs::floats(rows, gate.columns) + ByExpert::ints(gate.matrices, rows, used);
  float* const up_bias = gate_bias + bias_floats(p, op.gate_bias);
  if (op.gate_bias) gated.gate_bias = gate_bias, gated.up_bias = up_bias;
  float* const gate_scale = up_bias + bias_floats(p, op.up_bias);  // of each expert
  float* const up_scale = gate_scale + bias_floats(p, op.gate_scale);
  if (op.gate_scale) c.memory.weight(op.gate_scale.id).decode_row(0, 0, gate_scale);
  if (op.up_scale) c.memory.weight(op.up_scale.id).decode_row(0, 0, up_scale);
  uint16_t* const rounded = c.rounded(p, op.out.id);
  const bool tiled = of_experts.tiled(gate, up), shared_tiled = of_all.tiled(shared_gate, shared_up);
  const auto work = [&](int64_t m) {
    if (m < shared) return MatrixWork{shared_gate.panels(), rows, shared_tiled};
    return MatrixWork{gate.panels(), sorted.count(m - shared), tiled};
  };
  each_share(c.stealing(), shared + gate.matrices, least_panels(rows), work, [&](int64_t m, Slice panels) {
    if (m < shared) {
      multiply_gated(
          of_all, shared_gate, shared_up, 0, panels, rows, x, [](int64_t r) { return r; }, Gated{},
          c.rounded(p, op.shared_out.id), StoreTo{[&](int64_t r) { return shared_out(r); }});
      return;
    }
    const int64_t e = m - shared;
    const Selection* of = sorted.of(e);
    if (op.gate_bias) {
      c.memory.weight(op.gate_bias.id).decode_row(0, e, gate_bias);
      c.memory.weight(op.up_bias.id).decode_row(0, e, up_bias);
    }
    if (op.gate_scale) gated.gate_scale = gate_scale[e];
    if (op.up_scale) gated.up_scale = up_scale[e];
    multiply_gated(
        of_experts, gate, up, e, panels, sorted.count(e), x, [&](int64_t i) { return of[i].row; }, gated,
        rounded == nullptr ? nullptr : rounded + sorted.groups_before(e) * kGroupRows * gate.rows,
        StoreTo{[&](int64_t i) { return out(of[i].row, of[i].k); }});
  });
}

int64_t moe_gate_up_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<MoeGateUp>(record.args);
  return LazyInputs::floats(options.max_rows, p[op.gate.id].columns()) +
         ByExpert::ints(p[op.gate.id].shape[0], options.max_rows, p[op.ids.id].columns()) +
         2 * bias_floats(p, op.gate_bias) + bias_floats(p, op.gate_scale) + bias_floats(p, op.up_scale);
}

/// Up to so many rows moe_down_add may go by down_apart: with more, inputs may come as bf16.
constexpr int64_t kApartRows = kLeastRounded - 1;
/// Not where experts are multiplied on tiles, which weight their sums in another way.
bool goes_apart(const Context& c, const Products& of_experts, const Matrix& down, int64_t rows) {
  return c.workers > 1 && rows <= kApartRows && !of_experts.tiled(down);
}

/// Where things lie in a worker's scratch, in floats from its first line on; the products in one worker's.
struct ApartScratch {
  int64_t inputs, shared_inputs, sorted, bias, end;

  ApartScratch(const Program& p, const MoeDownAdd& op, int64_t rows) {
    const auto& down = p[op.down.id].shape;
    const int64_t used = p[op.ids.id].columns();
    inputs = rows * (used + 1) * down[1];
    shared_inputs = inputs + LazyInputs::floats(rows * used, down[2]);
    sorted = shared_inputs + (op.shared_in ? LazyInputs::floats(rows, p[op.shared_in.id].columns()) : 0);
    bias = sorted + ByExpert::ints(down[0], rows, used);
    end = bias + bias_floats(p, op.down_bias);
  }
};

/// What the experts are added to: out of a row of residual, or zeroes where there is none.
class Before {
 public:
  Before(const Context& c, const MoeDownAdd& op) : is_there_(op.residual) {
    if (is_there_) residual_ = c.memory.rows(op.residual.id);
  }
  /// Of outputs that no shared experts are added to.
  void fill(int64_t r, int64_t first, int64_t count, float* out) const {
    if (is_there_) {
      std::copy_n(residual_(r) + first, count, out + first);
    } else {
      std::fill_n(out + first, count, 0.0f);
    }
  }
  /// Calls with the store of the shared experts' products to rows of `out`.
  template <typename F>
  void with_store(const Rows<float>& out, F&& call) const {
    const auto to = [&](int64_t r) { return out(r); };
    if (is_there_) {
      call(StoreTo{to, [this](int64_t r) { return residual_(r); }});
    } else {
      call(StoreTo{to});
    }
  }

 private:
  bool is_there_;
  Rows<float> residual_ = {};
};

/// Adds the selected experts' biases, by their weights, to these outputs. scratch: a bias row.
void add_biases(const MoeDownAdd& op, const Context& c, const ByExpert& sorted, Slice outputs,
                float* scratch) {
  if (!op.down_bias) return;
  const Rows<float> out = c.memory.rows(op.out.id), weights = c.memory.rows(op.weights.id);
  const Weight biases = c.memory.weight(op.down_bias.id);
  const int64_t first = outputs.first, count = outputs.last - outputs.first;
  for (int64_t e = 0; e < biases.rows && count > 0; ++e) {
    if (sorted.count(e) == 0) continue;
    biases.decode_row(0, e, scratch);
    for (int64_t i = 0; i < sorted.count(e); ++i) {
      const Selection of = sorted.of(e)[i];
      small_kernels(c.isa).add_scaled(scratch + first, weights(of.row)[of.k], count, out(of.row) + first);
    }
  }
}

/// moe_down_add of few rows: a worker multiplies a stretch of all selected experts' panels, the shared
/// experts' first, then what others have left of theirs; the products are added up when all are there. So
/// memory is read in few pieces, and nobody waits for a core that somebody holds up.
void down_apart(const Program& p, const MoeDownAdd& op, const Context& c) {
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Rows<float> weights = c.memory.rows(op.weights.id);
  const Before before(c, op);
  const Matrix down = c.matrix(op.down.id);
  const int64_t rows = c.rows(p, op.in.id), used = in.heads, shared = op.shared_in ? 1 : 0;
  const Matrix shared_down = c.matrix((shared ? op.shared_down : op.down).id);
  const ApartScratch lies(p, op, rows);
  float* const mine = next_line(c.scratch());
  const ByExpert sorted =
      sort_by_expert(c.memory.int_rows(op.ids.id), rows, down.matrices, mine + lies.sorted);
  LazyInputs x(in, nullptr, {0, rows * used}, down.columns, mine + lies.inputs);
  LazyInputs shared_x(c.memory.rows((shared ? op.shared_in : op.in).id), nullptr, {0, shared * rows},
                      shared_down.columns, mine + lies.shared_inputs);
  // Of row r: its k-th expert's, and behind them those of the shared experts.
  float* const waiting = next_line(c.memory.scratch(0));
  const auto product = [&](int64_t r, int64_t k) { return waiting + (r * (used + 1) + k) * down.rows; };

  const Products of_all = products(c, rows);
  const bool shared_tiled = of_all.tiled(shared_down);
  const auto work = [&](int64_t m) {
    if (m < shared) return MatrixWork{shared_down.panels(), rows, shared_tiled, shared_down.panel_bytes};
    return MatrixWork{down.panels(), sorted.count(m - shared), false, down.panel_bytes};
  };
  each_share(c.stealing(), shared + down.matrices, least_panels(rows), work, [&](int64_t m, Slice panels) {
    const auto multiply_apart = [&](const Matrix& w, int64_t matrix, int64_t count, LazyInputs& inputs,
                                    auto index, auto to) {
      if (w.quantized) inputs.quantize(of_all.panels, count, index);
      multiply(
          w, matrix, panels, count, [&](int64_t i) { return inputs(w, index(i)); }, StoreTo{to});
    };
    if (m < shared) {
      const auto to = [&](int64_t r) { return product(r, used); };
      if (shared_tiled) {
        return multiply_tiled(
            *of_all.tiles, shared_down, 0, panels, rows, [&](int64_t r) { return shared_x.row(r); },
            shared_x.scratch(), StoreTo{to});
      }
      return multiply_apart(
          shared_down, 0, rows, shared_x, [](int64_t r) { return r; }, to);
    }
    const Selection* of = sorted.of(m - shared);
    multiply_apart(
        down, m - shared, sorted.count(m - shared), x, [=](int64_t i) { return of[i].row * used + of[i].k; },
        [&, of](int64_t i) { return product(of[i].row, of[i].k); });
  });
  c.meet();

  const Slice outputs = c.slice(down.rows, kPanelRows);
  const int64_t first = outputs.first, count = outputs.last - outputs.first;
  for (int64_t r = 0; r < rows; ++r) {
    if (shared > 0) {
      before.with_store(out, [&](const auto& store) { store(r, first, product(r, used) + first, count); });
    } else {
      before.fill(r, first, count, out(r));
    }
  }
  add_biases(op, c, sorted, outputs, mine + lies.bias);
  // In the order of the experts' ids, as for many rows.
  for (int64_t e = 0; e < down.matrices; ++e) {
    for (int64_t i = 0; i < sorted.count(e); ++i) {
      const Selection of = sorted.of(e)[i];
      const AddTo add{[&](int64_t r) { return out(r); }, [&](int64_t r) { return weights(r)[of.k]; }};
      add(of.row, first, product(of.row, of.k) + first, count);
    }
  }
}

void moe_down_add(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Rows<float> weights = c.memory.rows(op.weights.id);
  const Before before(c, op);
  const Matrix down = c.matrix(op.down.id);
  const int64_t rows = c.rows(p, op.in.id), used = in.heads;
  const Products of_experts = expert_products(c, rows, used, down.matrices);
  if (goes_apart(c, of_experts, down, rows)) return down_apart(p, op, c);
  const Slice panels = c.slice(down.panels());
  const int64_t ints = down_input_floats(p, op, rows),
                bias = ints + ByExpert::ints(down.matrices, rows, used),
                behind = bias + bias_floats(p, op.down_bias);
  const ByExpert sorted =
      sort_by_expert(c.memory.int_rows(op.ids.id), rows, down.matrices, c.scratch() + ints);
  const auto input_of = [&](const Selection* of) {
    return [=](int64_t i) { return in(of[i].row, of[i].k); };
  };
  const uint16_t* rounded = c.rounded(p, op.in.id);
  std::optional<TogetherInputs> inputs;
  if (rounded == nullptr && TogetherInputs::wanted(c, of_experts, down, rows)) {
    inputs.emplace(c, sorted, down.matrices, down.columns, behind);
    inputs->each([&](int64_t e, int whose, uint16_t* prepared) {
      if (whose != c.worker) return;
      const auto row = input_of(sorted.of(e));
      if (of_experts.tiled(down)) {
        round_rows(*of_experts.tiles, sorted.count(e), {0, down.columns}, row, prepared);
      } else {
        quantized(of_experts.panels, sorted.count(e), down.columns, row, reinterpret_cast<float*>(prepared));
      }
    });
  }
  const Slice outputs{panels.first * kPanelRows, std::min(panels.last * kPanelRows, down.rows)};
  if (op.shared_in) {
    const Matrix shared_down = c.matrix(op.shared_down.id);
    before.with_store(out, [&](const auto& store) {
      multiply_rows(products(c, rows), shared_down, 0, panels, rows, c.memory.rows(op.shared_in.id),
                    c.rounded(p, op.shared_in.id), c.scratch(), store);
    });
  } else {
    for (int64_t r = 0; r < rows; ++r) before.fill(r, outputs.first, outputs.last - outputs.first, out(r));
  }
  add_biases(op, c, sorted, outputs, c.scratch() + bias);
  // Experts add in the order of their ids: a row's sum never depends on the other rows.
  const auto store_of = [&](const Selection* of) {
    return AddTo{[=](int64_t i) { return out(of[i].row); },
                 [=](int64_t i) { return weights(of[i].row)[of[i].k]; }};
  };
  if (inputs) {
    c.meet();
    inputs->each([&](int64_t e, int, const uint16_t* prepared) {
      const auto store = store_of(sorted.of(e));
      if (of_experts.tiled(down)) {
        multiply_tiled(*of_experts.tiles, down, e, panels, sorted.count(e), RoundedRows{prepared},
                       c.scratch(), store);
      } else {
        const Inputs blocks{reinterpret_cast<const std::byte*>(prepared), 2 * down.columns};
        multiply(down, e, panels, sorted.count(e), blocks, store);
      }
    });
    return;
  }
  for (int64_t e = 0; e < down.matrices; ++e) {
    multiply_rows(of_experts, down, e, panels, sorted.count(e), input_of(sorted.of(e)), rounded, c.scratch(),
                  store_of(sorted.of(e)));
    if (rounded != nullptr) rounded += sorted.groups(e) * kGroupRows * down.columns;
  }
}

int64_t moe_down_add_scratch(const Program& p, const Op& record, const CompileOptions& options) {
  const auto& op = std::get<MoeDownAdd>(record.args);
  const int64_t experts = p[op.down.id].shape[0], rows = options.max_rows, used = p[op.ids.id].columns();
  const int64_t together = down_input_floats(p, op, rows) + ByExpert::ints(experts, rows, used) +
                           bias_floats(p, op.down_bias) +
                           TogetherInputs::floats(experts, rows, used, p[op.down.id].columns());
  return std::max(together, ApartScratch(p, op, std::min(rows, kApartRows)).end + kLineFloats);
}

void expert_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<ExpertMatmul>(record.args);
  const Rows<float> in = c.memory.rows(op.in.id), out = c.memory.rows(op.out.id);
  const Matrix weight = c.matrix(op.weight.id);
  const int64_t rows = c.rows(p, op.in.id), used = out.heads;
  const ByExpert sorted = sort_by_expert(c.memory.int_rows(op.ids.id), rows, weight.matrices,
                                         c.scratch() + input_floats(rows, weight.columns));
  // Who adds these up adds zeroes.
  const Rows<int32_t> ids = c.memory.int_rows(op.ids.id);
  const Slice outputs = c.slice(out.columns);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < used; ++k) {
      if (ids(r)[k] < 0) std::fill(out(r, k) + outputs.first, out(r, k) + outputs.last, 0.0f);
    }
  }
  for (int64_t e = 0; e < weight.matrices; ++e) {
    const Selection* of = sorted.of(e);
    const auto row = [&](int64_t i) { return in(of[i].row, in.heads == 1 ? 0 : of[i].k); };
    const StoreTo store{[&](int64_t i) { return out(of[i].row, of[i].k); }};
    multiply_rows(expert_products(c, rows, used, weight.matrices), weight, e, c.slice(weight.panels()),
                  sorted.count(e), row, nullptr, c.scratch(), store);
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
const Kernel kMoeDownAdd{"moe_down_add", Share::Together, moe_down_add, moe_down_add_scratch, true};

}  // namespace sluice::backend::cpu
