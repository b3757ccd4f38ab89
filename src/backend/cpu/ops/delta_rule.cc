// delta_rule: a worker takes whole heads, or where these are few some columns of each, and goes through the
// rows of every sequence in stretches: of a stretch's rows it first makes what all columns need, and then
// takes some columns of the matrix through all of them, which stay in its nearest cache. Every row's sums are
// taken one row after the other, so a row's bits are the same whatever is in a step and wherever it was cut.
#include <algorithm>
#include <cmath>

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

constexpr int64_t kStretch = 32;  // rows: what they need lies beside the matrix in a second-level cache

/// Asks for numbers that are about to be read: rows lie so far apart that nobody else foresees them.
void ask_for(const float* numbers, int64_t count) {
  constexpr int64_t kLine = 16;
  for (int64_t i = 0; i < count; i += kLine) __builtin_prefetch(numbers + i);
}

/// The numbers [first, first + count) of a row, its heads one after the other.
void copy_numbers(const Rows<float>& rows, int64_t row, int64_t first, int64_t count, float* out) {
  while (count > 0) {
    const int64_t column = first % rows.columns, some = std::min(count, rows.columns - column);
    out = std::copy_n(rows(row, first / rows.columns) + column, some, out);
    first += some, count -= some;
  }
}

class Heads {
 public:
  Heads(const Program& p, const DeltaRule& op, const Context& c)
      : p_(p),
        op_(op),
        c_(c),
        q_(c.memory.rows(op.q.id)),
        k_(c.memory.rows(op.k.id)),
        v_(c.memory.rows(op.v.id)),
        decay_(c.memory.rows(op.decay.id)),
        beta_(c.memory.rows(op.beta.id)),
        out_(c.memory.rows(op.out.id)),
        state_(c.memory.state(op.state.id)),
        by_channel_(op.by_channel(p)),
        tile_(c.scratch()),
        k_unit_(tile_ + k_.columns * kDeltaColumns),
        q_unit_(k_unit_ + kStretch * k_.columns),
        decays_(q_unit_ + kStretch * k_.columns),
        betas_(decays_ + kStretch * k_.columns),
        key_query_(betas_ + kStretch),
        of_rows_(key_query_ + kStretch),
        rates_(of_rows_ + kStretch),
        biases_(rates_ + v_.heads),
        kernels_(small_kernels(c.isa)) {
    c.memory.weight(op.rate.id).decode_row(0, 0, rates_);
    c.memory.weight(op.bias.id).decode_row(0, 0, biases_);
  }

  static int64_t scratch(const Program& p, const DeltaRule& op) {
    const int64_t keys = p[op.k.id].columns();
    return p[op.rate.id].columns() + p[op.bias.id].columns() + kStretch * (3 * keys + 3) +
           keys * kDeltaColumns;
  }

  /// Some columns of a head, of the rows [first, end) of one sequence.
  void run(int64_t head, Slice columns, int64_t first, int64_t end) const {
    const StateSlots slots =
        c_.input.states[static_cast<size_t>(c_.input.sequences[static_cast<size_t>(first)])];
    const auto at = [&](int64_t slot) {
      return state_.row(op_.cache_layer, slot, head * k_.columns) + columns.first;
    };
    float* const to = at(slots.to);
    const bool begins = c_.input.positions[static_cast<size_t>(first)] == 0;
    if (begins) {
      for (int64_t i = 0; i < k_.columns; ++i)
        std::fill_n(to + i * state_.columns, columns.last - columns.first, 0.0f);
    }
    DeltaRows rows{.k = k_unit_,
                   .q = q_unit_,
                   .decay = decays_,
                   .beta = betas_,
                   .key_query = key_query_,
                   .value_stride = v_.row_stride,
                   .out_stride = out_.row_stride,
                   .from = begins ? to : at(slots.from),
                   .to = to,
                   .stride = state_.columns,
                   .columns = columns.last - columns.first,
                   .tile = tile_};
    rows.keys = k_.columns;
    for (int64_t r = first; r < end; r += kStretch) {
      rows.rows = std::min(kStretch, end - r);
      prepare(r, rows.rows, head, columns);
      rows.values = v_(r, head) + columns.first;
      rows.out = out_(r, head) + columns.first;
      kernels_.delta_rule(rows);
      rows.from = to;
    }
  }

 private:
  /// Unit vectors, decays and betas of `count` rows.
  void prepare(int64_t first, int64_t count, int64_t head, Slice columns) const {
    constexpr int64_t kAhead = 4;  // rows
    const int64_t keys = k_.columns, key_head = op_.key_head(p_, head);
    const auto root = [&](const float* x) {
      return std::sqrt(kernels_.dot(x, x, keys) + static_cast<float>(DeltaRule::kEpsilon));
    };
    for (int64_t r = 0; r < count; ++r) {
      const float *q = q_(first + r, key_head), *k = k_(first + r, key_head);
      if (r + kAhead < count) {
        ask_for(q_(first + r + kAhead, key_head), keys);
        ask_for(k_(first + r + kAhead, key_head), keys);
      }
      ask_for(v_(first + r, head) + columns.first, columns.last - columns.first);
      const float by_k = 1 / root(k), by_q = 1 / (root(q) * std::sqrt(static_cast<float>(keys)));
      float *k_unit = k_unit_ + r * keys, *q_unit = q_unit_ + r * keys;
      for (int64_t i = 0; i < keys; ++i) k_unit[i] = k[i] * by_k, q_unit[i] = q[i] * by_q;
      key_query_[r] = kernels_.dot(k_unit, q_unit, keys);
      copy_numbers(beta_, first + r, head, 1, betas_ + r);
    }
    kernels_.sigmoid(betas_, count, betas_);
    prepare_decays(first, count, head);
  }

  void prepare_decays(int64_t first, int64_t count, int64_t head) const {
    const int64_t keys = k_.columns, each = by_channel_ ? keys : 1;
    const float rate = std::min(rates_[head], 0.0f), *bias = biases_ + head * each;
    float* const numbers = by_channel_ ? decays_ : of_rows_;
    for (int64_t r = 0; r < count; ++r) {
      float* x = numbers + r * each;
      copy_numbers(decay_, first + r, head * each, each, x);
      for (int64_t i = 0; i < each; ++i) x[i] += bias[i];
    }
    kernels_.softplus(numbers, count * each, numbers);
    for (int64_t i = 0; i < count * each; ++i) numbers[i] *= rate;
    kernels_.exp(numbers, count * each, numbers);
    if (by_channel_) return;
    for (int64_t r = 0; r < count; ++r) std::fill_n(decays_ + r * keys, keys, numbers[r]);
  }

  const Program& p_;
  const DeltaRule& op_;
  const Context& c_;
  Rows<float> q_, k_, v_, decay_, beta_, out_;
  State state_;
  bool by_channel_;
  float* tile_;
  float *k_unit_, *q_unit_, *decays_;     // [kStretch][keys]
  float *betas_, *key_query_, *of_rows_;  // [kStretch]
  float *rates_, *biases_;
  const SmallKernels& kernels_;
};

void delta_rule(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<DeltaRule>(record.args);
  const int64_t heads = p[op.v.id].heads(), columns = p[op.v.id].columns();
  const int64_t parts =
      heads % c.workers == 0 || heads >= 4 * c.workers ? 1 : (columns + kDeltaColumns - 1) / kDeltaColumns;
  const Slice units = c.slice(heads * parts);
  if (units.first >= units.last) return;
  const Heads kernel(p, op, c);
  for (int64_t unit = units.first; unit < units.last; ++unit) {
    const int64_t first_column = unit % parts * kDeltaColumns;
    const Slice some{first_column, parts == 1 ? columns : std::min(columns, first_column + kDeltaColumns)};
    for (int64_t first = 0, end = 0; first < c.input.rows(); first = end) {
      end = c.input.end_of_sequence(first);
      kernel.run(unit / parts, some, first, end);
    }
  }
}

int64_t delta_rule_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return Heads::scratch(p, std::get<DeltaRule>(record.args));
}

}  // namespace

const Kernel kDeltaRule{"delta_rule", Share::Other, delta_rule, delta_rule_scratch};

}  // namespace sluice::backend::cpu
