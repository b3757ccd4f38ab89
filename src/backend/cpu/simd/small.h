// The kernels of one instruction tier that touch each number once, as a table of functions. All of them take
// any count, and NaN for what it is.
#pragma once

#include <cstdint>

namespace sluice::backend::cpu {

enum class Isa : uint8_t;  // isa.h

/// What program::Swiglu says.
struct SwigluForm {
  float alpha, limit, shift;
};

/// Columns of a matrix that delta_rule works on at a time, at most.
inline constexpr int64_t kDeltaColumns = 64;

/// Rows of one head of a gated delta rule (program/ops/delta_rule.h): k, q, decay [rows][keys], beta and k .
/// q [rows]; of the values, what they give and the matrix some columns.
struct DeltaRows {
  int64_t rows, keys;
  const float *k, *q, *decay, *beta, *key_query;
  const float* values;
  int64_t value_stride;  ///< from a row's to the next one's
  float* out;
  int64_t out_stride;
  const float* from;  ///< may be to
  float* to;
  int64_t stride;  ///< of the matrix's rows
  int64_t columns;
  float* tile;  ///< [keys * kDeltaColumns], to work in
};

/// A row of a short convolution: of its taps the first `kept` are rows that a state has, the others the
/// step's.
struct ConvRow {
  const float* weights;  ///< [taps], each `weights_stride` behind the one before
  int64_t weights_stride, taps;
  const float* state;
  int64_t state_stride, kept;
  const float* step;
  int64_t step_stride;
  bool silu;  ///< of the sums

  const float* tap(int64_t k) const {
    return k < kept ? state + k * state_stride : step + (k - kept) * step_stride;
  }
};

struct SmallKernels {
  /// out = x / sqrt(mean of x^2 + epsilon) * weight.
  void (*rms_norm)(const float* x, const float* weight, int64_t count, float epsilon, float* out);
  /// cosine[i], sine[i] of position * frequencies[i]: within 2^-24 of the true values, as the angle in double
  /// gives them.
  void (*angles)(double position, const double* frequencies, int64_t count, float* cosine, float* sine);
  /// Turns `pairs` pairs by the angles; out may be x. A pair is neighbours (x[2 i], x[2 i + 1]), or of the
  /// two halves (x[i], x[i + pairs]).
  void (*rotate_neighbours)(const float* x, const float* cosine, const float* sine, int64_t pairs,
                            float* out);
  void (*rotate_halves)(const float* x, const float* cosine, const float* sine, int64_t pairs, float* out);
  /// out = 1 / (1 + e^-x).
  void (*sigmoid)(const float* x, int64_t count, float* out);
  /// out = e^(x - largest x), over their sum.
  void (*softmax)(const float* x, int64_t count, float* out);
  /// out += x * factor.
  void (*add_scaled)(const float* x, float factor, int64_t count, float* out);
  /// binary16 of each number, rounded to nearest even.
  void (*to_f16)(const float* x, int64_t count, uint16_t* out);
  /// e^x within 2 units in the last place, for x from -87 to 88; beyond, the value at the nearest of the two.
  void (*exp)(const float* x, int64_t count, float* out);
  /// out = gate and up as the form says; out may be either.
  void (*swiglu)(const float* gate, const float* up, const SwigluForm& form, int64_t count, float* out);
  /// x . y
  float (*dot)(const float* x, const float* y, int64_t count);
  /// out = log(1 + e^x), which no large x makes infinite.
  void (*softplus)(const float* x, int64_t count, float* out);
  /// The matrix behind the rows, and what it gives.
  void (*delta_rule)(const DeltaRows& rows);
  /// out [taps][count] of weights [count][taps].
  void (*tap_after_tap)(const float* weights, int64_t taps, int64_t count, float* out);
  /// `count` columns of a convolution's row.
  void (*convolve)(const ConvRow& row, int64_t count, float* out);
};

/// The table of a tier; the nearest one below where a tier has none of its own.
const SmallKernels& small_kernels(Isa isa);

}  // namespace sluice::backend::cpu
