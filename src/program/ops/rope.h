// rope: rotary position embedding (Su et al. 2021) with YaRN's stretched frequencies (Peng et al. 2023).
#pragma once

#include "program/operand.h"

namespace sluice::program {

/// The rotation frequencies of a model. factor 1: plain rope.
struct RopeParams {
  double base = 10000.0;
  double factor = 1.0;               ///< context stretch
  double original_context = 4096.0;  ///< context before the stretch
  double beta_fast = 32.0;  ///< rotations over the original context above which a pair keeps its frequency
  double beta_slow = 1.0;   ///< rotations below which a pair is stretched by the whole factor

  /// Radians a position of pair `pair` (of dims / 2). In double: at position 200,000 a float's error would
  /// show.
  double frequency(int64_t pair, int64_t dims) const;
};

/// Neighbouring pairs (2i, 2i + 1) of every head turn by position * frequency(i).
struct Rope {
  static constexpr const char* kName = "rope";
  Read in;    // [rows, heads, dims]
  Write out;  // [rows, heads, dims]
  RopeParams params;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("out", out);
  }
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
