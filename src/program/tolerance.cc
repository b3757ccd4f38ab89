#include "program/tolerance.h"

#include <algorithm>
#include <cmath>

#include "program/op_info.h"

namespace sluice::program {

double tolerance(const Program& program) {
  bool through_cache = false;
  int64_t terms = 1;
  for (const Op& op : program.ops()) {
    info(op).operands(op, [&](const char*, TensorId id, bool) {
      through_cache |= program[id].kind == Kind::Cache && program[id].type == quant::Type::F16;
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
