#include "engine/pace.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <span>
#include <utility>

namespace sluice::engine {

namespace {

size_t bucket(int64_t rows) { return std::min<size_t>(std::bit_width(static_cast<uint64_t>(rows)), 15); }

/// Least squares with some of the terms alone: the others cost nothing. False: a cost would be negative.
template <typename Matrix, typename Vector>
bool solve(const Matrix& products, const Vector& right, std::span<const size_t> chosen, Vector& costs) {
  Matrix m = products;
  Vector v = right;
  // Gauss and Jordan; the sums of squares are positive, so no pivot needs looking for.
  for (const size_t p : chosen) {
    if (m[p][p] < 1e-12) return false;
    for (const size_t i : chosen) {
      if (i == p) continue;
      const double factor = m[i][p] / m[p][p];
      for (const size_t j : chosen) m[i][j] -= factor * m[p][j];
      v[i] -= factor * v[p];
    }
  }
  costs = {};
  for (const size_t p : chosen) costs[p] = v[p] / m[p][p];
  return std::ranges::all_of(chosen, [&costs](size_t p) { return costs[p] >= 0; });
}

}  // namespace

// In units in which all three are about as large.
Pace::Terms Pace::terms(double rows, double depth) { return {1, rows / 256, rows / 256 * depth / 8192}; }

double Pace::expected(double rows, double depth) const {
  const Terms x = terms(rows, depth);
  return costs_[0] * x[0] + costs_[1] * x[1] + costs_[2] * x[2];
}

// Of as many rows, or of fewer: what they lack is then put down to the prompts' rows.
double Pace::answers_seconds(int64_t answer_rows) const {
  if (answer_rows == 0) return 0;
  for (size_t i = bucket(answer_rows); i > 0; --i)
    if (answers_[i] > 0) return answers_[i];
  return 0;
}

int64_t Pace::prompt_rows(int64_t answer_rows, double depth) const {
  if (last_rows_ == 0) return kLeastRows;
  // One step that was held up is scatter, two are slower than thought, and that is believed at once.
  const double late = std::max(0.0, std::min(late_[0], late_[1]));
  const double budget = most_seconds_ / scatter_ - answers_seconds(answer_rows) - late;
  // Costs are known where steps were: little more than what the last one would allow by itself.
  const double further = std::min(2.0, budget / last_added_);
  const double most = further * static_cast<double>(std::max(last_rows_, kLeastRows)) + kLeastRows;
  const double each = expected(1, depth) - costs_[0];
  const double rows = std::min((budget - costs_[0]) / each, most) + 0.25 * kLeastRows;
  return std::max(kLeastRows, static_cast<int64_t>(rows) / kLeastRows * kLeastRows);
}

void Pace::observe(int64_t answer_rows, int64_t prompt_rows, double depth, double seconds) {
  constexpr double kForget = 0.25;   // of what was known, at each step
  constexpr double kFirstSteps = 4;  // what they miss is not known yet
  // The least leaves room for what a model of three terms misses: 1.02 was passed by 1.5% on a GPU.
  constexpr double kScatterStep = 0.05, kLeastScatter = 1.05, kMostScatter = 1.6;
  constexpr double kHeldUp = 1.35;  // more than so many times what was expected is a step that was held up
  if (prompt_rows == 0) {
    double& known = answers_[bucket(answer_rows)];
    known = known > 0 ? known + kForget * (seconds - known) : seconds;
    return;
  }
  if (prompt_rows < kLeastRows) return;  // the end of a prompt: says little about its rows
  const auto rows = static_cast<double>(prompt_rows);
  const double answers = answers_seconds(answer_rows);
  double added = std::max(0.05 * seconds, seconds - answers);
  if (last_rows_ > 0) {
    const double known = expected(rows, depth);
    late_ = {added - known, late_[0]};
    // A percentile, found step by step: up when it is passed, down by as much in 99 others.
    const bool passed = answers + added > scatter_ * (answers + known);
    if (steps_ > kFirstSteps) scatter_ += kScatterStep * (passed ? 0.99 : -0.01);
    scatter_ = std::clamp(scatter_, kLeastScatter, kMostScatter);
    added = std::min(added, kHeldUp * known);
  }
  fit(terms(rows, depth), added);
  last_rows_ = prompt_rows;
  last_added_ = added;
}

// What prompts added to the last steps, as a sum of the terms. As long as all steps are much the same they do
// not tell the terms apart: then a row costs all of it, and what a step costs whatever its rows nothing.
void Pace::fit(const Terms& x, double seconds) {
  constexpr double kKeep = 0.97;  // of a step's weight, at each further one
  steps_ = kKeep * steps_ + 1;
  for (size_t i = 0; i < kTerms; ++i) {
    for (size_t j = 0; j < kTerms; ++j) products_[i][j] = kKeep * products_[i][j] + x[i] * x[j];
    answers_of_terms_[i] = kKeep * answers_of_terms_[i] + x[i] * seconds;
  }
  // What is thought before steps tell: no rows, no seconds; and 8192 positions cost a row as much as itself.
  constexpr double kDepth = 0.01;
  auto products = products_;
  products[0][0] += 1;
  for (const size_t i : {1, 2})
    for (const size_t j : {1, 2}) products[i][j] += i == j ? kDepth : -kDepth;
  constexpr size_t kAll[] = {0, 1, 2}, kRows[] = {1, 2}, kFlat[] = {0, 1}, kOne[] = {1};
  for (const std::span<const size_t> chosen : {std::span<const size_t>(kAll), {kRows}, {kFlat}, {kOne}})
    if (solve(products, answers_of_terms_, chosen, costs_) && costs_[1] > 0) return;
}

}  // namespace sluice::engine
