// Kernels of batch 1, one for each type of weights: they stream weights past one row of activations
// (prim/one_row.cuh). The kernels for some rows ask them first. Each says whether it could serve, which it
// cannot where weights are of float types or of mixtures that are rare, or where rows lie at odd addresses.
#pragma once

#include "backend/cuda/kernel.h"

namespace sluice::backend::cuda {

/// Products of one row with up to three weights of one type and as many columns.
struct OneRowProducts {
  struct Part {
    Matrix weight;
    float* out;
    const float* add;  ///< null, or what is added
  };
  static constexpr int kMost = 3;
  Part parts[kMost];
  int count = 0;
  const float* in = nullptr;
  const float* norm = nullptr;  ///< null, or weights of a root mean square norm of `in`
  float epsilon = 0;
};
bool multiply_one_row(const Context& context, const OneRowProducts& products);

/// Gated products of one row: of one shared or dense matrix, and of selected experts.
struct OneRowGated {
  struct Experts {
    Matrix gate, up;     ///< codes null: not there
    Rows<float> out;     ///< [1][slots][outputs]
    const int32_t* ids;  ///< [slots]; null: matrix 0
    int slots;
  };
  Experts shared{}, routed{};
  const float* in = nullptr;
};
bool gate_one_row(const Context& context, const OneRowGated& gated);

/// Down projections of selected and shared experts, weighted, with the residual.
struct OneRowDown {
  Matrix down, shared_down;  ///< shared_down.codes null: not there
  Rows<float> in;            ///< [1][slots][columns]
  const float *shared_in, *weights, *residual;
  const int32_t* ids;
  float* out;
};
bool add_down_one_row(const Context& context, const OneRowDown& down);

}  // namespace sluice::backend::cuda
