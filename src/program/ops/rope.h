// rope: rotary position embedding (Su et al. 2021) with YaRN's stretched frequencies (Peng et al. 2023).
#pragma once

#include <utility>

#include "program/operand.h"

namespace sluice::program {

/// Which columns of a head turn together: 2i and 2i + 1, or i and dims / 2 + i. A convention of the files'
/// converters that no key tells: llama's and deepseek2's weights are stored for the first, qwen's for the
/// other.
enum class RopePairs : uint8_t { Neighbours, Halves };

/// The rotation frequencies of a model. factor 1: plain rope.
struct RopeParams {
  double base = 10000.0;
  double factor = 1.0;               ///< context stretch
  double original_context = 4096.0;  ///< context before YaRN's stretch; 0: all pairs are stretched alike
  double beta_fast = 32.0;  ///< rotations over the original context above which a pair keeps its frequency
  double beta_slow = 1.0;   ///< rotations below which a pair is stretched by the whole factor
  bool whole_ramp = true;   ///< the ramp between begins and ends at whole pairs
  RopePairs pairs = RopePairs::Neighbours;
  bool turns = true;  ///< false: all angles are 0 (attention without positions)

  /// Radians a position of pair `pair` (of dims / 2). In double: at position 200,000 a float's error would
  /// show.
  double frequency(int64_t pair, int64_t dims) const;
};

/// Pair i of every head turns by position * frequency(i), divided by factors[i] where a file has them
/// (Llama 3.1's stretch of the slow pairs). The last `passed` columns of a head are no part of any pair: they
/// pass through (GLM-4.5 turns half of a head).
struct Rope {
  static constexpr const char* kName = "rope";
  Read in;    // [rows, heads, dims]
  Write out;  // [rows, heads, dims]
  RopeParams params;
  Read factors;  // [1, 1, rotated / 2], optional
  int64_t passed = 0;

  template <typename F>
  void operands(F&& f) const {
    f("in", in), f("factors", factors), f("out", out);
  }
  /// The two columns of pair i, of `dims` that turn.
  static std::pair<int64_t, int64_t> pair(RopePairs pairs, int64_t i, int64_t dims) {
    return pairs == RopePairs::Neighbours ? std::pair{2 * i, 2 * i + 1} : std::pair{i, dims / 2 + i};
  }
  /// The columns of a head that turn.
  int64_t rope_columns(const Program& p) const;
  std::string attributes() const;
  void check(const Program& p) const;
  Cost cost(const Program& p, const StepShape& shape) const;
  void reference(RefMemory& memory, const StepInput& input) const;
  static std::vector<OpCase> cases();
};

}  // namespace sluice::program
