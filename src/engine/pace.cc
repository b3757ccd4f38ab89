#include "engine/pace.h"

#include <algorithm>
#include <bit>

namespace sluice::engine {

namespace {

size_t bucket(int64_t rows) { return std::min<size_t>(std::bit_width(static_cast<uint64_t>(rows)), 15); }

}  // namespace

// Of as many rows, or of fewer: what they lack is then put down to the prompts' rows.
double Pace::answers_seconds(int64_t answer_rows) const {
  if (answer_rows == 0) return 0;
  for (size_t i = bucket(answer_rows); i > 0; --i)
    if (answers_[i] > 0) return answers_[i];
  return 0;
}

int64_t Pace::prompt_rows(int64_t answer_rows) const {
  if (row_seconds_ <= 0) return kLeastRows;
  // One step that was held up is scatter, two are slower than thought, and that is believed at once.
  const double late = std::max(0.0, std::min(late_[0], late_[1]));
  const double budget = most_seconds_ / scatter_ - answers_seconds(answer_rows) - late;
  // A line is known where its points lie: little more than what the last step would allow by itself.
  const double further = std::min(2.0, budget / last_added_);
  const double most = further * static_cast<double>(std::max(last_rows_, kLeastRows)) + kLeastRows;
  const double rows = std::min((budget - base_seconds_) / row_seconds_, most) + kLeastRows / 4;
  return std::max(kLeastRows, static_cast<int64_t>(rows) / kLeastRows * kLeastRows);
}

void Pace::observe(int64_t answer_rows, int64_t prompt_rows, double seconds) {
  constexpr double kForget = 0.25;   // of what was known, at each step
  constexpr double kFirstSteps = 4;  // what they miss is not known yet
  constexpr double kScatterStep = 0.05, kMostScatter = 1.35;
  if (prompt_rows == 0) {
    double& known = answers_[bucket(answer_rows)];
    known = known > 0 ? known + kForget * (seconds - known) : seconds;
    return;
  }
  if (prompt_rows < kLeastRows) return;  // the end of a prompt: says little about its rows
  const auto rows = static_cast<double>(prompt_rows);
  double added = std::max(0.05 * seconds, seconds - answers_seconds(answer_rows));
  if (row_seconds_ > 0) {
    const double expected = base_seconds_ + rows * row_seconds_;
    late_ = {added - expected, late_[0]};
    // A percentile, found step by step: up when it is passed, down by as much in 99 others.
    const double answers = answers_seconds(answer_rows);
    const bool passed = answers + added > scatter_ * (answers + expected);
    if (steps_ > kFirstSteps) scatter_ += kScatterStep * (passed ? 0.99 : -0.01);
    scatter_ = std::clamp(scatter_, 1.02, kMostScatter);
    added = std::min(added, 2 * expected);
  }
  fit(rows, added);
  last_rows_ = prompt_rows;
  last_added_ = added;
}

// A line through what prompts added to the last steps. As long as all of them had about as many rows it goes
// through 0 rows, 0 seconds; where they differ they tell what a step with prompts costs whatever its rows.
void Pace::fit(double rows, double seconds) {
  constexpr double kKeep = 0.9;  // of a step's weight, at each further one
  steps_ = kKeep * steps_ + 1;
  rows_ = kKeep * rows_ + rows;
  seconds_ = kKeep * seconds_ + seconds;
  rows_rows_ = kKeep * rows_rows_ + rows * rows;
  rows_seconds_ = kKeep * rows_seconds_ + rows * seconds;
  const double points = steps_ + 1;  // the origin is one
  const double slope = (points * rows_seconds_ - rows_ * seconds_) / (points * rows_rows_ - rows_ * rows_);
  const double all = seconds_ / rows_;
  row_seconds_ = std::clamp(slope, all / 4, all);
  base_seconds_ = (seconds_ - row_seconds_ * rows_) / steps_;
}

}  // namespace sluice::engine
