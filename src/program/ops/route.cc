#include "program/ops/route.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "program/ops/checks.h"

namespace sluice::program {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

/// softmax or sigmoid of a row of logits.
std::vector<float> scores_of(const float* logits, int64_t experts, Gating gating) {
  std::vector<float> scores(logits, logits + experts);
  if (gating == Gating::Sigmoid) {
    for (float& score : scores) score = 1.0f / (1.0f + std::exp(-score));
    return scores;
  }
  const float largest = *std::max_element(scores.begin(), scores.end());
  float sum = 0;
  for (float& score : scores) sum += score = std::exp(score - largest);
  for (float& score : scores) score /= sum;
  return scores;
}

/// The indices of the `count` largest values, largest first, lower index first among equals.
std::vector<int32_t> largest(const std::vector<float>& values, int64_t count) {
  std::vector<int32_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
  });
  order.resize(static_cast<size_t>(count));
  return order;
}

/// Bars the experts of all but the best groups from selection.
void keep_best_groups(std::vector<float>& selection, const Route& route) {
  const size_t group_size = selection.size() / static_cast<size_t>(route.groups);
  std::vector<float> value(static_cast<size_t>(route.groups));
  for (size_t g = 0; g < value.size(); ++g) {
    std::vector<float> members(selection.begin() + static_cast<std::ptrdiff_t>(g * group_size),
                               selection.begin() + static_cast<std::ptrdiff_t>((g + 1) * group_size));
    std::sort(members.begin(), members.end(), std::greater<>());
    value[g] = members[0];
    if (route.gating == Gating::Sigmoid && group_size > 1) value[g] += members[1];
  }
  std::vector<bool> kept(value.size(), false);
  for (const int32_t g : largest(value, route.groups_used)) kept[static_cast<size_t>(g)] = true;
  for (size_t e = 0; e < selection.size(); ++e) {
    if (!kept[e / group_size]) selection[e] = kNever;
  }
}

}  // namespace

std::string Route::attributes() const {
  std::string text = fmt::format("{}{} scale {:g}", gating == Gating::Softmax ? "softmax" : "sigmoid",
                                 normalize ? " normalized" : "", scale);
  if (groups > 1) text += fmt::format(" groups {} of {}", groups_used, groups);
  return text;
}

void Route::check(const Program& p) const {
  const int64_t experts = p[logits.id].columns(), used = p[ids.id].columns();
  expect_shape(p, "logits", logits.id, {kStepRows, 1, experts});
  expect_shape(p, "ids", ids.id, {kStepRows, 1, used});
  expect_type(p, "ids", ids.id, quant::Type::I32);
  expect_shape(p, "weights", weights.id, {kStepRows, 1, used});
  if (bias) expect_shape(p, "bias", bias.id, {1, 1, experts});
  check_rule(experts, used);
}

void Route::check_rule(int64_t experts, int64_t used) const {
  if (groups < 1 || experts % groups != 0) fail("{} experts do not make {} groups", experts, groups);
  if (groups_used < 1 || groups_used > groups) fail("{} of {} groups cannot be used", groups_used, groups);
  if (used < 1 || used > experts / groups * groups_used) {
    fail("{} experts cannot be selected from {} of {} groups of {}", used, groups_used, groups,
         experts / groups);
  }
}

Cost Route::cost(const Program& p, const StepShape& shape) const {
  return {bytes_of(p, shape, {logits.id, bias.id}), bytes_of(p, shape, {ids.id, weights.id}),
          4 * p.elements(logits.id, shape)};
}

void Route::reference(RefMemory& memory, const StepInput& input) const {
  const Program& p = memory.program();
  const int64_t experts = p[logits.id].columns(), used = p[ids.id].columns();
  std::vector<float> biases(static_cast<size_t>(experts), 0.0f);
  if (bias) memory.weight_row(bias.id, 0, 0, biases.data());
  for (int64_t r = 0; r < input.rows(); ++r) {
    const std::vector<float> scores = scores_of(memory.row(logits.id, r), experts, gating);
    std::vector<float> selection(scores);
    for (size_t e = 0; e < selection.size(); ++e) selection[e] = selectable(selection[e] + biases[e]);
    if (groups > 1) keep_best_groups(selection, *this);
    const std::vector<int32_t> chosen = largest(selection, used);
    float sum = 0;
    for (const int32_t id : chosen) sum += scores[static_cast<size_t>(id)];
    const float factor = normalize ? scale / std::max(sum, kSmallestSum) : scale;
    for (size_t k = 0; k < chosen.size(); ++k) {
      memory.int_row(ids.id, r)[k] = chosen[k];
      memory.row(weights.id, r)[k] = scores[static_cast<size_t>(chosen[k])] * factor;
    }
  }
}

std::vector<OpCase> Route::cases() {
  const auto build = [](int64_t experts, int64_t used, Route route, bool biased) {
    return [=](Builder& b) {
      Route r = route;
      r.logits.id = b.activation("logits", kStepRows, 1, experts);
      if (biased) r.bias.id = b.weight("bias", quant::Type::F32, 1, 1, experts);
      b.route(r, used);
    };
  };
  Route sigmoid{.gating = Gating::Sigmoid, .normalize = true, .scale = 1.8f};
  Route grouped = sigmoid;
  grouped.groups = 8, grouped.groups_used = 4;
  Route softmax{.gating = Gating::Softmax};
  Route softmax_grouped{.gating = Gating::Softmax, .scale = 16, .groups = 8, .groups_used = 3};
  return {{"sigmoid 4 of 64", 9, build(64, 4, sigmoid, true)},
          {"sigmoid grouped 8 of 256", 9, build(256, 8, grouped, true)},
          {"softmax 6 of 64", 9, build(64, 6, softmax, false)},
          {"softmax grouped 6 of 160", 9, build(160, 6, softmax_grouped, false)}};
}

}  // namespace sluice::program
