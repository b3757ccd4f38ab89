// How many drafted tokens a step should have rows for, beside its answers' own: as many as bring the most
// tokens a second. Learns from how long steps took; knows numbers only.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace sluice::engine {

/// What was drafted for one answer.
struct Draft {
  /// How likely each token is right, if those before it are.
  std::span<const double> chances;
  int64_t length = 0;  ///< tokens that should have rows
  int64_t rows = 1;    ///< that the answer has in any case
  /// They are still to be predicted, all answers' first ones in a round, then the second ones.
  bool predicted = false;
};

class DraftPace {
 public:
  /// A step's answers and drafts at most: more rows are hardly cheaper, and up to here a row's result on a
  /// CPU does not depend on how many there are.
  static constexpr int64_t kMostRows = 8;

  /// A step of so many rows of answers and their drafts, and no others, took so long.
  void observe(int64_t rows, double seconds);
  /// Sets every draft's length, for a step of at most so many rows, those of the answers among them. replays:
  /// after a draft that was wrong somewhere, the rows that were right are computed once more. A round of
  /// predictions takes round_seconds.
  void choose(std::span<Draft> drafts, int64_t most_rows, bool replays = false,
              double round_seconds = 0) const;

 private:
  struct Seen {
    double seconds = 0;  ///< 0: never
    int64_t step = 0;    ///< the last one
  };

  double expected_seconds(int64_t rows) const;

  std::array<Seen, kMostRows + 1> seen_{};  // by rows
  int64_t step_ = 0;
};

}  // namespace sluice::engine
