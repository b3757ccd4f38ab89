// Rotary embedding's angles: frequencies are computed once by the host, in double, and handed to kernels by
// value, as whole turns a position: then no division is left, and sincospif has no slow path for large
// angles.
#pragma once

#include "program/ops/rope.h"

namespace sluice::backend::cuda {

struct SinCos {
  float sine, cosine;
};

struct RopeTable {
  static constexpr int kMostPairs = 128;
  double frequency[kMostPairs];  ///< whole turns a position
  bool neighbours;               ///< pair i is columns 2i and 2i + 1, otherwise i and i + half

  __device__ int first(int i) const { return neighbours ? 2 * i : i; }
  __device__ int second(int i, int half) const { return neighbours ? 2 * i + 1 : half + i; }
  /// factors: divisors of the frequencies, or null. The angle is reduced in double: at position 200,000 a
  /// float's error would show.
  __device__ SinCos sin_cos(int position, int i, const float* factors) const {
    double revolutions = position * frequency[i];
    if (factors != nullptr) revolutions /= __ldg(factors + i);
    SinCos sin_cos;
    sincospif(static_cast<float>(2 * (revolutions - rint(revolutions))), &sin_cos.sine, &sin_cos.cosine);
    return sin_cos;
  }
};

inline RopeTable rope_table(const program::RopeParams& params, int64_t dims) {
  RopeTable table{};
  constexpr double kWhole = 6.283185307179586476925;  // radians
  for (int64_t i = 0; i < dims / 2; ++i) table.frequency[i] = params.frequency(i, dims) / kWhole;
  table.neighbours = params.pairs == program::RopePairs::Neighbours;
  return table;
}

}  // namespace sluice::backend::cuda
