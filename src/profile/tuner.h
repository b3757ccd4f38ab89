// Measures the choices that kernels leave open (program/backend.h, Variants) at given shapes, and finds what
// is faster than the built-in one. Keeping it is somebody else's business.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "profile/op_bench.h"
#include "program/backend.h"

namespace sluice::profile {

/// An op to measure with.
struct TuneCase {
  const program::Program* program = nullptr;
  const program::Op* op = nullptr;
  double calls = 1;  ///< of a step: what its time weighs
  int64_t rows = 1;
  std::function<const program::WeightBytes&()> weights;  ///< good until the next call
};

/// One choice, measured.
struct Choice {
  program::Variants variants;
  int ops = 0;                 ///< shapes that offer it
  std::vector<double> us;      ///< by value: all ops that offer it, of a step
  std::vector<double> off_us;  ///< by value: how far us may be off by chance
  int64_t best = 0;            ///< the built-in value unless another is clearly faster

  double us_of(int64_t value) const;
  /// Of the time of these ops, that the best value saves.
  double gain() const { return 1 - us_of(best) / us_of(variants.builtin); }
};

/// Another value must be faster by so much, and by more than chance.
inline constexpr double kLeastGain = 0.02;

struct TuneOptions {
  double rotate_bytes = 0.4e9;  ///< of each value's copies, which are all there at once
  double seconds = 0.3;         ///< for each shape and value
  int least_rounds = 9;
};

/// make: a backend with these values. progress: told what is measured next. Values of one key take turns
/// round by round, so that a machine that slows down slows them all.
std::vector<Choice> tune(const std::function<std::unique_ptr<program::Backend>(const program::Tuning&)>& make,
                         std::span<const TuneCase> cases, const TuneOptions& options,
                         const std::function<void(const std::string&)>& progress);

}  // namespace sluice::profile
