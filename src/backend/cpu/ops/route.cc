// route: scores, selection and weights of each row's experts; rows are shared among the workers.
#include <algorithm>
#include <limits>

#include "backend/cpu/ops/kernels.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {
namespace {

using namespace program;

constexpr float kNeverSelected = -std::numeric_limits<float>::infinity();

/// The index of the first largest value.
int64_t argmax(const float* values, int64_t count) {
  return std::max_element(values, values + count) - values;
}

/// A group's worth: its best expert (softmax) or its two best together (sigmoid).
float group_value(const float* members, int64_t size, Gating gating) {
  float best = kNeverSelected, second = kNeverSelected;
  for (int64_t i = 0; i < size; ++i) {
    if (members[i] > best) {
      second = best;
      best = members[i];
    } else {
      second = std::max(second, members[i]);
    }
  }
  return gating == Gating::Sigmoid && size > 1 ? best + second : best;
}

/// Bars the experts of all but the best groups. values: scratch [groups].
void keep_best_groups(const Route& op, float* selection, int64_t experts, float* values) {
  const int64_t size = experts / op.groups;
  for (int64_t g = 0; g < op.groups; ++g) values[g] = group_value(selection + g * size, size, op.gating);
  for (int32_t kept = 0; kept < op.groups_used; ++kept) {
    values[argmax(values, op.groups)] = kNeverSelected;  // marks it as taken
  }
  for (int64_t g = 0; g < op.groups; ++g) {
    if (values[g] != kNeverSelected) std::fill_n(selection + g * size, size, kNeverSelected);
  }
}

void route(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<Route>(record.args);
  const Rows<float> logits = c.memory.rows(op.logits.id), weights = c.memory.rows(op.weights.id);
  const Rows<int32_t> ids = c.memory.int_rows(op.ids.id);
  const int64_t experts = logits.columns, used = weights.columns;
  float* scores = c.scratch();
  float* selection = scores + experts;
  float* bias = selection + experts;
  float* groups = bias + experts;
  std::fill_n(bias, experts, 0.0f);
  if (op.bias) c.memory.weight(op.bias.id).decode_row(0, 0, bias);
  const SmallKernels& kernels = small_kernels(c.isa);
  const auto score = op.gating == Gating::Sigmoid ? kernels.sigmoid : kernels.softmax;
  const Slice rows = c.row_slice(c.rows(p, op.logits.id));
  for (int64_t r = rows.first; r < rows.last; ++r) {
    score(logits(r), experts, scores);
    for (int64_t e = 0; e < experts; ++e) selection[e] = Route::selectable(scores[e] + bias[e]);
    if (op.groups > 1) keep_best_groups(op, selection, experts, groups);
    float sum = 0;
    for (int64_t k = 0; k < used; ++k) {
      const int64_t id = argmax(selection, experts);
      selection[id] = kNeverSelected;
      ids(r)[k] = static_cast<int32_t>(id);
      weights(r)[k] = scores[id];
      sum += scores[id];
    }
    const float factor = op.normalize ? op.scale / std::max(sum, Route::kSmallestSum) : op.scale;
    for (int64_t k = 0; k < used; ++k) weights(r)[k] *= factor;
  }
}

int64_t route_scratch(const Program& p, const Op& record, const CompileOptions&) {
  return 4 * p[std::get<Route>(record.args).logits.id].columns();
}

}  // namespace

const Kernel kRoute{"route", Share::Rows, route, route_scratch};

}  // namespace sluice::backend::cpu
