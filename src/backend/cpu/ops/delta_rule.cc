// delta_rule: a worker takes whole heads, or where these are few some columns of each, and goes through the
// rows of every sequence one by one: the part of the matrix that it works on stays in its nearest caches. So
// a row's bits are the same whatever is in a step.
#include <algorithm>
#include <cmath>

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

constexpr int64_t kColumns = 64;  // a worker's at least: 4 vectors of the widest

/// log(1 + e^x), which no large x makes infinite.
float softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::abs(x))); }

/// Number i of a row, its heads one after the other.
float number_of(const Rows<float>& rows, int64_t row, int64_t i) {
  return rows(row, i / rows.columns)[i % rows.columns];
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
        rates_(c.scratch()),
        biases_(rates_ + v_.heads),
        k_unit_(biases_ + decay_.heads * decay_.columns),
        q_unit_(k_unit_ + k_.columns),
        decays_(q_unit_ + k_.columns) {
    c.memory.weight(op.rate.id).decode_row(0, 0, rates_);
    c.memory.weight(op.bias.id).decode_row(0, 0, biases_);
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
    DeltaRow row{.k = k_unit_,
                 .q = q_unit_,
                 .decay = decays_,
                 .keys = k_.columns,
                 .from = begins ? to : at(slots.from),
                 .to = to,
                 .stride = state_.columns,
                 .columns = columns.last - columns.first};
    for (int64_t r = first; r < end; ++r) {
      prepare(r, head, row);
      row.values = v_(r, head) + columns.first;
      row.out = out_(r, head) + columns.first;
      small_kernels(c_.isa).delta_rule(row);
      row.from = to;
    }
  }

 private:
  /// Unit vectors, decays and beta of a row.
  void prepare(int64_t r, int64_t head, DeltaRow& row) const {
    const int64_t keys = k_.columns, key_head = op_.key_head(p_, head);
    const float *q = q_(r, key_head), *k = k_(r, key_head);
    const float by_k = 1 / std::sqrt(dot(k, k, keys) + static_cast<float>(DeltaRule::kEpsilon));
    const float by_q = 1 / (std::sqrt(dot(q, q, keys) + static_cast<float>(DeltaRule::kEpsilon)) *
                            std::sqrt(static_cast<float>(keys)));
    for (int64_t i = 0; i < keys; ++i) k_unit_[i] = k[i] * by_k, q_unit_[i] = q[i] * by_q;
    row.key_query = dot(k_unit_, q_unit_, keys);
    const float rate = std::min(rates_[head], 0.0f);
    const auto exponent = [&](int64_t i) { return rate * softplus(number_of(decay_, r, i) + biases_[i]); };
    if (by_channel_) {
      for (int64_t i = 0; i < keys; ++i) decays_[i] = exponent(head * keys + i);
      small_kernels(c_.isa).exp(decays_, keys, decays_);
    } else {
      std::fill_n(decays_, keys, std::exp(exponent(head)));
    }
    row.beta = 1 / (1 + std::exp(-number_of(beta_, r, head)));
  }

  const Program& p_;
  const DeltaRule& op_;
  const Context& c_;
  Rows<float> q_, k_, v_, decay_, beta_, out_;
  State state_;
  bool by_channel_;
  float *rates_, *biases_, *k_unit_, *q_unit_, *decays_;
};

void delta_rule(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<DeltaRule>(record.args);
  const int64_t heads = p[op.v.id].heads(), columns = p[op.v.id].columns();
  const int64_t parts =
      heads % c.workers == 0 || heads >= 4 * c.workers ? 1 : (columns + kColumns - 1) / kColumns;
  const Slice units = c.slice(heads * parts);
  if (units.first >= units.last) return;
  const Heads kernel(p, op, c);
  for (int64_t unit = units.first; unit < units.last; ++unit) {
    const int64_t first_column = unit % parts * kColumns;
    const Slice some{first_column, parts == 1 ? columns : std::min(columns, first_column + kColumns)};
    for (int64_t first = 0, end = 0; first < c.input.rows(); first = end) {
      end = c.input.end_of_sequence(first);
      kernel.run(unit / parts, some, first, end);
    }
  }
}

int64_t delta_rule_scratch(const Program& p, const Op& record, const CompileOptions&) {
  const auto& op = std::get<DeltaRule>(record.args);
  return p[op.rate.id].columns() + p[op.bias.id].columns() + 3 * p[op.k.id].columns();
}

}  // namespace

const Kernel kDeltaRule{"delta_rule", Share::Other, delta_rule, delta_rule_scratch};

}  // namespace sluice::backend::cpu
