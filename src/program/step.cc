#include "program/step.h"

#include <cmath>

#include "program/tensor.h"

namespace sluice::program {

StepInput StepInput::part(int64_t first, int64_t last) const {
  const auto at = static_cast<size_t>(first), count = static_cast<size_t>(last - first);
  return {tokens.subspan(at, count),
          positions.subspan(at, count),
          sequences.subspan(at, count),
          slots.subspan(at, count),
          page_tables,
          pages_per_sequence,
          {},
          states};
}

int64_t StepInput::end_of_sequence(int64_t first) const {
  int64_t end = first + 1;
  while (end < rows() && sequences[static_cast<size_t>(end)] == sequences[static_cast<size_t>(first)]) ++end;
  return end;
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
