// How fast the pairs of every rope of a Program rotate: made once, as it takes longer than rotating by them.
#pragma once

#include <cstdint>
#include <vector>

#include "program/backend.h"
#include "program/program.h"

namespace sluice::backend::cpu {

class Frequencies {
 public:
  /// Reads the ropes' factors.
  Frequencies(const program::Program& program, const program::WeightBytes& weights);

  /// Radians a position of each pair, of the rope that rotates into `out`.
  const double* of(program::TensorId out) const {
    return tables_[static_cast<size_t>(table_of_[static_cast<size_t>(out)])].data();
  }

 private:
  std::vector<std::vector<double>> tables_;  // those that differ
  std::vector<int32_t> table_of_;            // by TensorId; -1: of nobody's rope
};

}  // namespace sluice::backend::cpu
