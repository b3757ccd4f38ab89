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

/// The same from a block as it was loaded. High nibbles are not moved down but multiplied as they stand,
/// which is 16 times their product and as exact.
template <Type T>
__device__ inline float multiply(const Raw<T>& raw, const ActivationBlock& x) {
  if constexpr (T == Type::Q4_0 || T == Type::Q4_1 || T == Type::Q4_K) {
    int low = 0, high = 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      low = __dp4a(static_cast<int>(raw.codes[i] & 0x0f0f0f0fu), x.low[i], low);
      asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(high) : "r"(raw.codes[i] & 0xf0f0f0f0u), "r"(x.high[i]));
    }
    int sum = low + (high >> 4);
    // Both halves' sums times the offset.
    constexpr int kOffset = -Traits<T>::offset & 255;
    if constexpr (Traits<T>::offset != 0) sum = __dp2a_lo(x.sums, kOffset | kOffset << 8, sum);
    const Scales s = unpack_scales<T>(raw);
    float product = s.multiplier[0] * static_cast<float>(sum);
    if constexpr (Traits<T>::adds) product += s.addend[0] * static_cast<float>(__dp2a_lo(x.sums, 0x0101, 0));
    return x.scale * product;
  } else {
    return multiply<T>(unpack_codes<T>(raw), unpack_scales<T>(raw), x);
  }
}

/// Products of kOut neighbouring weight rows with a row of activations.
template <int kOut = 1>
struct Sums {
  float of[kOut];
};

/// How many blocks a lane asks for at once, of each of kOut weight rows: some 128 bytes (k128Bytes) or 64 in
/// all.
template <Type T, int kOut, bool k128Bytes>
constexpr int blocks_at_once() {
  constexpr int kAll = (k128Bytes ? 8 : 4) * 16 / Traits<T>::codes_bytes;
  return kAll / kOut < 1 ? 1 : kAll / kOut > 8 ? 8 : kAll / kOut;
}

/// This lane's part of the products of the flat rows row, row + 1, ... (of which `count` are there) with a
/// row of activations. lane: within the rows' lanes. Not inlined: a kernel holds it for every type, and each
/// gets registers of its own.
template <Type T, int kOut, bool k128Bytes>
__device__ __noinline__ Sums<kOut> blocked_part(const Matrix& m, int64_t row, int count, int lane, int lanes,
                                                Activations x) {
  constexpr int kAtOnce = blocks_at_once<T, kOut, k128Bytes>();
  const int blocks = m.columns / 32;
  const CodePlanes at = planes_from(m);
  const int64_t first = row * blocks;
  Sums<kOut> sums{};
  for (int begin = lane; begin < blocks; begin += lanes * kAtOnce) {
    Raw<T> raw[kAtOnce][kOut];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int o = 0; o < kOut; ++o) {
        const int b = begin + i * lanes;
        if (b < blocks && o < count) {
          raw[i][o] = load_block<T>(at, first + o * blocks + b);
        } else {
          raw[i][o] = {};  // scales of 0
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int b = min(begin + i * lanes, blocks - 1);
      const ActivationBlock block = x.block(0, b);
#pragma unroll
      for (int o = 0; o < kOut; ++o)
        sums.of[o] += multiply<T>(unpack_codes<T>(raw[i][o]), unpack_scales<T>(raw[i][o]), block);
    }
  }
  return sums;
}

__device__ __noinline__ inline float float_part(const Matrix& m, int64_t row, int lane, int lanes,
                                                Activations x) {
  const int64_t first = row * m.columns;
  float sum = 0;
  if (m.type == Type::F32 && m.columns % 4 == 0) {
    const float4* w = reinterpret_cast<const float4*>(m.codes) + first / 4;
#pragma unroll 4
    for (int c = lane; c < m.columns / 4; c += lanes) {
      const float4 v = __ldg(w + c);
      const float4 a = reinterpret_cast<const float4*>(x.float_row(0))[c];
      sum += v.x * a.x + v.y * a.y + v.z * a.z + v.w * a.w;
    }
    return sum;
  }
  if (m.type != Type::F32 && m.columns % 8 == 0) {
    constexpr int kAtOnce = 4;  // eights of a lane on their way
    const uint4* const w = reinterpret_cast<const uint4*>(m.codes) + first / 8;
    const int eights = m.columns / 8;
#pragma unroll 1
    for (int begin = lane; begin < eights; begin += kAtOnce * lanes) {
      uint4 v[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) v[i] = load_weight(w + min(begin + i * lanes, eights - 1));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (begin + i * lanes >= eights) break;
        const uint32_t pairs[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        float number[8];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const bool half = m.type == Type::F16;
          number[2 * k] = half ? half_bits(pairs[k] & 0xffff) : __uint_as_float(pairs[k] << 16);
          number[2 * k + 1] = half ? half_bits(pairs[k] >> 16) : __uint_as_float(pairs[k] & 0xffff0000u);
        }
        const float4* const at = reinterpret_cast<const float4*>(x.float_row(0)) + 2 * (begin + i * lanes);
        const float4 a = at[0], b = at[1];
        sum += number[0] * a.x + number[1] * a.y + number[2] * a.z + number[3] * a.w + number[4] * b.x +
               number[5] * b.y + number[6] * b.z + number[7] * b.w;
      }
    }
    return sum;
  }
#pragma unroll 4
  for (int c = lane; c < m.columns; c += lanes) {
    sum += float_number(m.type, m.codes, first + c) * x.float_row(0)[c];
  }
  return sum;
}

/// Products of kOut flat rows from `row` on, of which `count` (0: none) are there, with a row of activations,
/// on all their lanes: every lane of the warp calls it, groups of `lanes` with rows of their own of one
/// matrix. k128Bytes: more is asked for at once, which takes registers.
template <int kOut = 1, bool k128Bytes = false>
__device__ inline Sums<kOut> dot(const Matrix& m, int64_t row, int count, int lanes, const Activations& x) {
  const int lane = threadIdx.x % lanes;
  Sums<kOut> sums{};
  if (count > 0) {
    switch (m.type) {
#define SLUICE_BLOCKED(type) \
  case Type::type: sums = blocked_part<Type::type, kOut, k128Bytes>(m, row, count, lane, lanes, x); break
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
      SLUICE_BLOCKED(NVFP4);
      SLUICE_BLOCKED(IQ2_XXS);
      SLUICE_BLOCKED(IQ2_XS);
      SLUICE_BLOCKED(IQ2_S);
      SLUICE_BLOCKED(IQ3_XXS);
      SLUICE_BLOCKED(IQ3_S);
      SLUICE_BLOCKED(IQ1_S);
      SLUICE_BLOCKED(IQ1_M);
#undef SLUICE_BLOCKED
      default:
#pragma unroll
        for (int o = 0; o < kOut; ++o) {
          if (o >= count) break;
          sums.of[o] = float_part(m, row + o, lane, lanes, x);
        }
    }
  }
#pragma unroll
  for (float& sum : sums.of) sum = lane_sum(sum, lanes);
  return sums;
}

}  // namespace sluice::backend::cuda
