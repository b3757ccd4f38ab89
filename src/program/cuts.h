// Where the activations of a program are cut that becomes one of several places (split.cc).
#pragma once

#include <map>
#include <span>
#include <vector>

#include "program/program.h"

namespace sluice::program {

/// By place, what it has of a row's columns (of all heads).
using Cut = std::vector<Range>;

struct Cuts {
  std::map<TensorId, Cut> activations;  ///< by storage, those that places have parts of
  Cut kv;                               ///< heads of keys and values, of grouped attention
};

/// From the last op to the first, because a reader says where an activation may be cut: between the blocks of
/// a weight that it multiplies, between heads of keys and values.
Cuts find_cuts(const Program& program, std::span<const double> shares);

inline int64_t row_columns(const Tensor& tensor) { return tensor.heads() * tensor.columns(); }

}  // namespace sluice::program
