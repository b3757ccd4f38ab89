// How many rows of prompts a step may hold, beside the rows of answers, to take no longer than it should.
// Learns from how long steps took; knows numbers only.
#pragma once

#include <array>
#include <cstdint>

namespace sluice::engine {

class Pace {
 public:
  /// Fewer rows than these are not worth a step: what weights cost is then most of it.
  static constexpr int64_t kLeastRows = 16;
  /// Steps of at most `seconds`.
  explicit Pace(double seconds) : most_seconds_(seconds) {}

  /// Rows of prompts for the next step with so many rows of answers: kLeastRows or a multiple of them.
  int64_t prompt_rows(int64_t answer_rows) const;
  /// A step took so long.
  void observe(int64_t answer_rows, int64_t prompt_rows, double seconds);

 private:
  double answers_seconds(int64_t answer_rows) const;
  void fit(double rows, double seconds);

  double most_seconds_;
  // Seconds of a step without prompts, by the logarithm of its rows; 0: not seen.
  std::array<double, 16> answers_{};
  // What prompts add to a step: so many seconds, and so many a row; 0: not seen. Of the last steps, by least
  // squares, whose sums these are.
  double base_seconds_ = 0, row_seconds_ = 0;
  double steps_ = 0, rows_ = 0, seconds_ = 0, rows_rows_ = 0, rows_seconds_ = 0;
  std::array<double, 2> late_{};  // seconds by which the last two steps took longer than that, or less
  double scatter_ = 1.15;         // how many times what was expected 99 of 100 steps take at most
  int64_t last_rows_ = 0;         // of prompts, in the last step that had any, and ...
  double last_added_ = 0;         // ... the seconds that they took
};

}  // namespace sluice::engine
