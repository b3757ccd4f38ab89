#include "engine/draft_pace.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"

namespace sluice::engine {

void DraftPace::observe(int64_t rows, double seconds) {
  constexpr double kForget = 0.25;  // of what was known at the last step of as many rows, unless ...
  constexpr int64_t kLong = 32;     // ... that is so many steps ago
  constexpr double kHeldUp = 1.3;   // more than so many times what was known is a step that was held up
  if (rows < 1 || rows > kMostRows) return;
  Seen& seen = seen_[static_cast<size_t>(rows)];
  const bool afresh = seen.seconds == 0 || step_ - seen.step > kLong;
  const double took = afresh ? seconds : std::min(seconds, kHeldUp * seen.seconds);
  seen = {afresh ? took : seen.seconds + kForget * (took - seen.seconds), ++step_};
}

// Between numbers of rows that were seen; beyond them it is hoped for the best, and soon known better. 0: of
// so few rows nothing is known.
double DraftPace::expected_seconds(int64_t rows) const {
  constexpr double kHope = 0.02;  // that a further row adds
  // What was not seen for long may be quicker by now: some day it looks worth a try.
  constexpr double kStale = 0.9995;  // a step
  const auto seconds = [this](int64_t r) {
    const Seen& seen = seen_[static_cast<size_t>(r)];
    return seen.seconds * std::pow(kStale, static_cast<double>(step_ - seen.step));
  };
  int64_t below = rows, above = rows;
  while (below > 0 && seconds(below) == 0) --below;
  if (below == 0) return 0;
  while (above < kMostRows && seconds(above) == 0) ++above;
  const auto further = static_cast<double>(rows - below);
  if (seconds(above) == 0) return seconds(below) * (1 + kHope * further);
  if (above == below) return seconds(below);
  return seconds(below) + (seconds(above) - seconds(below)) * further / static_cast<double>(above - below);
}

void DraftPace::choose(std::span<Draft> drafts, int64_t most_rows, bool replays, double round_seconds) const {
  constexpr double kWorth = 1.02;  // times as many tokens a second
  CHECK(most_rows <= kMostRows, "{} rows", most_rows);
  int64_t rows = 0;
  for (Draft& draft : drafts) draft.length = 0, rows += draft.rows;
  if (rows == 0 || rows >= most_rows || expected_seconds(std::ssize(drafts)) == 0) return;
  // One token more at a time, the likeliest there is; those from the best number of rows on are taken back.
  std::array<double, kMostRows> chances{};  // that all of a draft's tokens up to its next one are right
  std::array<size_t, kMostRows> order{};
  const auto next = [&](size_t i) {
    const Draft& draft = drafts[i];
    const auto at = static_cast<size_t>(draft.length);
    return at < draft.chances.size() ? chances[i] * draft.chances[at] : 0.0;
  };
  chances.fill(1);
  const int64_t certain = rows;
  auto tokens = static_cast<double>(drafts.size());
  // Rows that are computed once more have been paid for when they were drafted.
  const double alone = expected_seconds(std::ssize(drafts)), paid = expected_seconds(rows) - alone;
  double best = tokens / alone, again = 0;  // rows that are to be expected once more
  size_t added = 0, worth = 0;
  int64_t rounds = 0;
  for (; rows < most_rows; ++added) {
    size_t likeliest = 0;
    for (size_t i = 1; i < drafts.size(); ++i)
      if (next(i) > next(likeliest)) likeliest = i;
    if (next(likeliest) == 0) break;
    Draft& draft = drafts[likeliest];
    const double before = std::exchange(chances[likeliest], next(likeliest));
    tokens += chances[likeliest];
    if (replays) again += static_cast<double>(draft.rows + draft.length) * (before - chances[likeliest]);
    ++draft.length;
    if (draft.predicted) rounds = std::max(rounds, draft.length);
    order[added] = likeliest;
    const double seconds = expected_seconds(++rows) - paid;
    const double each = (seconds - alone) / static_cast<double>(rows - certain);
    const double predicting = static_cast<double>(rounds) * round_seconds;
    const double rate = tokens / (seconds + again * each + predicting);
    if (rate > kWorth * best) best = rate, worth = added + 1;
  }
  while (added > worth) --drafts[order[--added]].length;
}

}  // namespace sluice::engine
