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

/// Products with some rows of activations.
template <int kRows>
struct Sums {
  float of[kRows];
};

/// This lane's part of a row's product with kRows rows of activations. lane: within the row's lanes. Not
/// inlined: a kernel holds it for every type, and each gets registers of its own.
template <Type T, int kRows>
__device__ __noinline__ Sums<kRows> blocked_part(const Matrix& m, int64_t row, int lane, int lanes,
                                                 Activations x) {
  constexpr int kInFlight = Traits<T>::codes_bytes == 32 ? 2 : 4;
  const int blocks = m.columns / 32;
  const CodePlanes at = planes_from(m);
  const int64_t first = row * blocks;
  Sums<kRows> sums{};
  for (int b = lane; b < blocks; b += lanes * kInFlight) {
    Raw<T> raw[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      // A lane with nothing left loads its last block again: no branch parts the loads.
      raw[i] = load_block<T>(at, first + min(b + i * lanes, blocks - 1));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int block = b + i * lanes;
      if (block < blocks) {
        const Codes codes = unpack_codes<T>(raw[i]);
        const Scales scales = unpack_scales<T>(raw[i]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) sums.of[r] += multiply<T>(codes, scales, x.block(r, block));
      }
    }
  }
  return sums;
}

template <int kRows>
__device__ __noinline__ Sums<kRows> float_part(const Matrix& m, int64_t row, int lane, int lanes,
                                               Activations x) {
  const int64_t first = row * m.columns;
  Sums<kRows> sums{};
  if (m.type == Type::F32 && m.columns % 4 == 0) {
    const float4* w = reinterpret_cast<const float4*>(m.codes) + first / 4;
#pragma unroll 4
    for (int c = lane; c < m.columns / 4; c += lanes) {
      const float4 v = __ldg(w + c);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float4 a = reinterpret_cast<const float4*>(x.float_row(r))[c];
        sums.of[r] += v.x * a.x + v.y * a.y + v.z * a.z + v.w * a.w;
      }
    }
    return sums;
  }
#pragma unroll 4
  for (int c = lane; c < m.columns; c += lanes) {
    const float v = float_number(m.type, m.codes, first + c);
#pragma unroll
    for (int r = 0; r < kRows; ++r) sums.of[r] += v * x.float_row(r)[c];
  }
  return sums;
}

/// The product of the flat row `row` with kRows rows of activations, on all its lanes: every lane of the warp
/// calls it, groups of `lanes` with rows of their own of one type; valid: this group's row is there.
template <int kRows>
__device__ inline Sums<kRows> dot(const Matrix& m, int64_t row, bool valid, int lanes, const Activations& x) {
  const int lane = threadIdx.x % lanes;
  Sums<kRows> sums{};
  if (valid) {
    switch (m.type) {
#define SLUICE_BLOCKED(type) \
  case Type::type: sums = blocked_part<Type::type, kRows>(m, row, lane, lanes, x); break
      SLUICE_BLOCKED(Q4_0);
      SLUICE_BLOCKED(Q4_1);
      SLUICE_BLOCKED(Q5_0);
      SLUICE_BLOCKED(Q5_1);
      SLUICE_BLOCKED(Q8_0);
      SLUICE_BLOCKED(Q2_K);
      SLUICE_BLOCKED(Q3_K);
      SLUICE_BLOCKED(Q4_K);
      SLUICE_BLOCKED(Q5_K);
      SLUICE_BLOCKED(Q6_K);
      SLUICE_BLOCKED(IQ4_NL);
      SLUICE_BLOCKED(IQ4_XS);
      SLUICE_BLOCKED(MXFP4);
#undef SLUICE_BLOCKED
      default: sums = float_part<kRows>(m, row, lane, lanes, x);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) sums.of[r] = lane_sum(sums.of[r], lanes);
  return sums;
}

}  // namespace sluice::backend::cuda
