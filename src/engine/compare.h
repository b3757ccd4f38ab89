// Two backends walk a Program in lockstep: every op runs on both with the same inputs, those that the first
// backend computed, so that errors do not add up and each op is judged by itself. The inputs are rounded to
// what eight bits hold (program/tolerance.h): quantising them is a format's error and not a kernel's. The ops
// are those that the second backend runs in a step of these rows: what it has no kernel for is taken apart,
// so that a wrong part is named, and what it has one for is judged whole, by the first's expansion. Each op
// is compiled as a Program of its own; whole runs, with their shared memory and missing barriers, are
// compared by their logits.
//
// A kernel that rounds its operands is right where its result is the exact one of operands so rounded. With
// operands w and x off by some e of themselves, independently, a sum of products is off by e times the root
// of the sum of (w x)^2: as much of the result, while terms do not cancel, and more where they do (values of
// late layers: up to 7 times). So where a result is out of tolerance, the first backend runs once more on
// inputs shaken by a known share of themselves: the tolerance grows by as many times as the result moves
// further than they did.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "program/backend.h"

namespace sluice::engine {

/// One result of one op on both backends.
struct OpDifference {
  std::string op;                  ///< "7.mla_attend"
  std::string tensor;              ///< the result's name
  std::string kernel_a, kernel_b;  ///< that the op is bound to; several where it runs as its expansion
  double error = 0;                ///< relative to the whole result
  double tolerance = 0;            ///< of that (program/tolerance.h), more where the result's terms cancel
  std::array<int64_t, 3> worst{};  ///< row, head and column of the element that differs most
  float a = 0, b = 0;              ///< its values

  bool within() const { return error <= tolerance; }  // false for NaN
};

/// Runs the tokens as one sequence in one step and calls `each` with every result of every op, in order. An
/// op that writes the cache is judged through those that read it. Expert ids must be equal: tolerance 0. Ends
/// before the first op of a layer from `layers` on.
void compare_ops(const program::Program& program, const program::WeightBytes& weights, program::Backend& a,
                 program::Backend& b, std::span<const int32_t> tokens,
                 const std::function<void(const OpDifference&)>& each,
                 int64_t layers = std::numeric_limits<int64_t>::max());

/// The logits [tokens, vocabulary] of the whole Program on one backend, in one step.
std::vector<float> run_whole(const program::Program& program, const program::WeightBytes& weights,
                             program::Backend& backend, std::span<const int32_t> tokens);

}  // namespace sluice::engine
