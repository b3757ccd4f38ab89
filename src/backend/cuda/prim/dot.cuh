// Products of a weight's row with rows of activations: `lanes` neighbouring lanes of a warp share a row and
// stream it, 16 bytes of codes a lane at a time. Knows weights and activations; nothing of ops.
#pragma once

#include "backend/cuda/prim/activations.cuh"
#include "backend/cuda/prim/codes.cuh"

namespace sluice::backend::cuda {

/// Lanes that share a row of `columns` columns: the most that leave few idle.
SLUICE_BOTH inline int lanes_for(int columns) {
  const int blocks = (columns + 31) / 32;
  for (int lanes = 32; lanes > 1; lanes /= 2) {
    const int rounds = (blocks + lanes - 1) / lanes;
    if (rounds * lanes * 10 <= blocks * 11) return lanes;
  }
  return 1;
}

/// The same of a weight: float rows go to whole warps.
SLUICE_BOTH inline int lanes_for(Type type, int columns) {
  const bool floats = type == Type::F32 || type == Type::F16 || type == Type::BF16;
  return floats ? 32 : lanes_for(columns);
}

template <Type T>
__device__ inline float multiply(const Codes& w, const Scales& s, const ActivationBlock& x) {
  int first = 0, second = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    first = __dp4a(w.low[i], x.low[i], first), second = __dp4a(w.high[i], x.high[i], second);
  first -= Traits<T>::offset * x.first_sum();
  second -= Traits<T>::offset * x.second_sum();
  float sum;
  if constexpr (Traits<T>::halves) {
    sum = s.multiplier[0] * static_cast<float>(first) + s.multiplier[1] * static_cast<float>(second);
    if constexpr (Traits<T>::adds) {
      sum +=
          s.addend[0] * static_cast<float>(x.first_sum()) + s.addend[1] * static_cast<float>(x.second_sum());
    }
  } else {
    sum = s.multiplier[0] * static_cast<float>(first + second);
    if constexpr (Traits<T>::adds) sum += s.addend[0] * static_cast<float>(x.first_sum() + x.second_sum());
  }
  return x.scale * sum;
}

/// This lane's part of a row's product with kRows rows of activations, added to sums. lane: within the row's
/// lanes.
template <Type T, int kRows>
__device__ inline void add_blocked(const Matrix& m, int64_t row, int lane, int lanes, const Activations& x,
                                   float (&sums)[kRows]) {
  constexpr int kInFlight = Traits<T>::codes_bytes == 32 ? 2 : 4;
  const int blocks = m.columns / 32;
  const int64_t first = row * blocks;
  for (int b = lane; b < blocks; b += lanes * kInFlight) {
    Raw<T> raw[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (b + i * lanes < blocks) raw[i] = load_block<T>(m, first + b + i * lanes);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      if (b + i * lanes >= blocks) break;
      const Codes codes = unpack_codes<T>(raw[i]);
      const Scales scales = unpack_scales<T>(raw[i]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) sums[r] += multiply<T>(codes, scales, x.block(r, b + i * lanes));
    }
  }
}

template <int kRows>
__device__ inline void add_float(const Matrix& m, int64_t row, int lane, int lanes, const Activations& x,
                                 float (&sums)[kRows]) {
  const int64_t first = row * m.columns;
  if (m.type == Type::F32 && m.columns % 4 == 0) {
    const float4* w = reinterpret_cast<const float4*>(m.codes) + first / 4;
#pragma unroll 4
    for (int c = lane; c < m.columns / 4; c += lanes) {
      const float4 v = __ldg(w + c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 a = reinterpret_cast<const float4*>(x.float_row(r))[c];
        sums[r] += v.x * a.x + v.y * a.y + v.z * a.z + v.w * a.w;
      }
    }
    return;
  }
#pragma unroll 4
  for (int c = lane; c < m.columns; c += lanes) {
    const float v = float_number(m.type, m.codes, first + c);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums[r] += v * x.float_row(r)[c];
  }
}

/// The product of the flat row `row` with kRows rows of activations, on all its lanes: every lane of the warp
/// calls it, groups of `lanes` with rows of their own of one type; valid: this group's row is there.
template <int kRows>
__device__ inline void dot(const Matrix& m, int64_t row, bool valid, int lanes, const Activations& x,
                           float (&sums)[kRows]) {
  const int lane = threadIdx.x % lanes;
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = 0;
  if (valid) {
    if (is_float(m.type)) {
      add_float<kRows>(m, row, lane, lanes, x, sums);
    } else {
      with_blocked_type(m.type, [&]<Type T>() { add_blocked<T, kRows>(m, row, lane, lanes, x, sums); });
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums[r] = lane_sum(sums[r], lanes);
}

}  // namespace sluice::backend::cuda
