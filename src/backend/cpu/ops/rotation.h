// What rope does to a row, for the op of that name and for those that have it inside.
#pragma once

#include "backend/cpu/kernel.h"
#include "backend/cpu/simd/small.h"

namespace sluice::backend::cpu {

class Rotation {
 public:
  Rotation(const program::Program& p, const program::Rope& op, const Context& c)
      : kernels_(small_kernels(c.isa)),
        rotate_(op.params.pairs == program::RopePairs::Neighbours ? kernels_.rotate_neighbours
                                                                  : kernels_.rotate_halves),
        frequencies_(c.memory.frequencies(op.out.id)),
        pairs_(op.rope_columns(p) / 2) {}

  /// Cosines and sines of all pairs at a position, [2 * pairs].
  void angles(int32_t position, float* to) const {
    kernels_.angles(position, frequencies_, pairs_, to, to + pairs_);
  }
  /// A head's columns that rotate, [2 * pairs], by such angles; out may be x.
  void rotate(const float* x, const float* angles, float* out) const {
    rotate_(x, angles, angles + pairs_, pairs_, out);
  }

 private:
  const SmallKernels& kernels_;
  decltype(SmallKernels::rotate_halves) rotate_;
  const double* frequencies_;
  int64_t pairs_;
};

}  // namespace sluice::backend::cpu
