#include "program/step.h"

#include <cmath>

#include "program/tensor.h"

namespace sluice::program {

StepInput StepInput::first(int64_t count) const {
  const auto some = static_cast<size_t>(count);
  return {tokens.first(some),
          positions.first(some),
          sequences.first(some),
          slots.first(some),
          page_tables,
          pages_per_sequence,
          {}};
}

int64_t StepInput::slot_of(int64_t row, int64_t position) const {
  const int64_t table = static_cast<int64_t>(sequences[static_cast<size_t>(row)]) * pages_per_sequence;
  const int64_t page = page_tables[static_cast<size_t>(table + position / kPageRows)];
  return page * kPageRows + position % kPageRows;
}

double StepShape::distinct_experts(double experts, double used) const {
  if (selected > 0) return selected;
  return experts * (1.0 - std::pow(1.0 - used / experts, rows));
}

}  // namespace sluice::program
