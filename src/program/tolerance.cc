#include "program/tolerance.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "program/op_info.h"

namespace sluice::program {

namespace {

/// Ops whose products take what the op itself has made, which a backend may quantise to eight bits.
bool hands_on(const Op& op) {
  return std::holds_alternative<NormMatmul>(op.args) || std::holds_alternative<NormMoeGateUp>(op.args) ||
         std::holds_alternative<MlaQuery>(op.args) || std::holds_alternative<MlaValues>(op.args) ||
         std::holds_alternative<MlaHeads>(op.args) || std::holds_alternative<NormMlaHeads>(op.args);
}

}  // namespace

double tolerance(const Program& program) {
  // Eight bits, 32 under a scale: half a step of 127 from the largest is about 1 part in 200 of a block of
  // normal numbers, and some are handed on one after the other.
  for (const Op& op : program.ops()) {
    // A product of two such sums: both are off, independently.
    if (std::holds_alternative<NormGateUp>(op.args)) return 0x1p-6 * std::numbers::sqrt2;
    if (hands_on(op)) return 0x1p-6;
  }
  bool through_cache = false;
  int64_t terms = 1;
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      through_cache |= program[id].kind == Kind::Cache;
      terms = std::max(terms, program[id].columns());
    });
  }
  return through_cache ? 0x1p-11 : 4 * 0x1p-24 * std::sqrt(static_cast<double>(terms));
}

void round_to_eight_bits(std::span<float> values, int64_t columns) {
  constexpr size_t kRun = 32;
  if (columns % static_cast<int64_t>(kRun) != 0) return;
  for (size_t at = 0; at < values.size(); at += kRun) {
    const std::span<float> run = values.subspan(at, kRun);
    float largest = 0;
    for (const float value : run) largest = std::max(largest, std::abs(value));
    const float step = largest / 127;
    if (!std::isnormal(step)) continue;  // nothing but zeros, or numbers that no scale holds
    for (float& value : run) value = step * std::round(value / step);
  }
}

}  // namespace sluice::program
