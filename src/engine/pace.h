// How many rows of prompts a step may hold, beside the rows of answers, to take no longer than it should.
// Learns from how long steps took; knows numbers only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace sluice::engine {

class Pace {
 public:
  /// Fewer rows than these are not worth a step: what weights cost is then most of it.
  static constexpr int64_t kLeastRows = 16;
  /// Steps of at most `seconds`.
  explicit Pace(double seconds) : most_seconds_(seconds) {}

  /// Rows of prompts for the next step with so many rows of answers, when so many tokens of the prompts are
  /// already read, on average: kLeastRows or a multiple of them.
  int64_t prompt_rows(int64_t answer_rows, double depth) const;
  /// Such a step took so long.
  void observe(int64_t answer_rows, int64_t prompt_rows, double depth, double seconds);

 private:
  /// What a step's prompts may cost: something whatever they are, something a row, and something a row and
  /// position before it.
  static constexpr size_t kTerms = 3;
  using Terms = std::array<double, kTerms>;

  static Terms terms(double rows, double depth);
  double expected(double rows, double depth) const;
  double answers_seconds(int64_t answer_rows) const;
  void fit(const Terms& x, double seconds);

  double most_seconds_;
  // Seconds of a step without prompts, by the logarithm of its rows; 0: not seen.
  std::array<double, 16> answers_{};
  // Seconds that prompts add to a step, by term; a row costs nothing: not seen. Of the last steps, by least
  // squares, whose sums these are.
  Terms costs_{};
  std::array<Terms, kTerms> products_{};
  Terms answers_of_terms_{};
  double steps_ = 0;
  std::array<double, 2> late_{};  // seconds by which the last two steps took longer than expected, or less
  double scatter_ = 1.1;          // how many times what was expected 99 of 100 steps take at most
  int64_t last_rows_ = 0;         // of prompts, in the last step that had any, and ...
  double last_added_ = 0;         // ... the seconds that they took
};

}  // namespace sluice::engine
