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
  /// Of the time that a step may take, what is aimed at: measured times scatter.
  static constexpr double kAim = 0.85;

  /// Steps of at most `seconds`.
  explicit Pace(double seconds) : aim_(kAim * seconds) {}

  /// Rows of prompts for the next step with so many rows of answers: at least kLeastRows, and in whole
  /// multiples of them.
  int64_t prompt_rows(int64_t answer_rows) const;
  /// A step took so long.
  void observe(int64_t answer_rows, int64_t prompt_rows, double seconds);

 private:
  double answers_seconds(int64_t answer_rows) const;

  double aim_;
  // Seconds of a step without prompts, by the logarithm of its rows; 0: not seen.
  std::array<double, 16> answers_{};
  double row_seconds_ = 0;  // that a prompt's row adds; 0: not seen
  int64_t most_seen_ = 0;   // prompt rows of the last step that had any
};

}  // namespace sluice::engine
