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

/// A row of one head of a gated delta rule (program/ops/delta_rule.h): k, q, decay [keys], and of the values
/// and the matrix some columns, whose rows lie `stride` apart. from may be to.
struct DeltaRow {
  const float *k, *q, *decay;
  int64_t keys;
  float key_query;  ///< k . q
  float beta;
  const float* values;
  const float* from;
  float* to;
  int64_t stride;
  int64_t columns;
  float* out;
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
  /// The matrix behind the row, and what it gives.
  void (*delta_rule)(const DeltaRow& row);
};

/// The table of a tier; the nearest one below where a tier has none of its own.
const SmallKernels& small_kernels(Isa isa);

}  // namespace sluice::backend::cpu
