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
  const double room = (aim_ - answers_seconds(answer_rows)) / row_seconds_;
  // Not far beyond what was tried: a row's cost depends on how many there are.
  const double most = static_cast<double>(2 * std::max(most_seen_, kLeastRows));
  const auto rows = static_cast<int64_t>(std::clamp(room, 0.0, most));
  return std::max(kLeastRows, rows / kLeastRows * kLeastRows);
}

void Pace::observe(int64_t answer_rows, int64_t prompt_rows, double seconds) {
  constexpr double kForget = 0.25;  // of what was known, at each step
  if (prompt_rows == 0) {
    double& known = answers_[bucket(answer_rows)];
    known = known > 0 ? known + kForget * (seconds - known) : seconds;
    return;
  }
  if (prompt_rows < kLeastRows) return;  // the end of a prompt: says little about its rows
  const double least = 0.05 * seconds / static_cast<double>(prompt_rows);
  const double cost =
      std::max(least, (seconds - answers_seconds(answer_rows)) / static_cast<double>(prompt_rows));
  // Slower than thought is believed at once, but one step that was held up does not count for all of it.
  if (row_seconds_ <= 0) {
    row_seconds_ = cost;
  } else if (cost > row_seconds_) {
    row_seconds_ = std::min(cost, 2 * row_seconds_);
  } else {
    row_seconds_ += kForget * (cost - row_seconds_);
  }
  most_seen_ = prompt_rows;
}

}  // namespace sluice::engine
