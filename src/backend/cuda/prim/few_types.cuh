// What the products of few_bytes.cuh know of a weight's type: how 16 rows' codes become bytes of a matrix
// instruction's first operand, and what its sums are scaled with. Types differ here alone.
//
// A byte is kUnit times the code, taken to the byte's upper end, so that the fewest instructions move it
// there: signed, without the code's bias, or unsigned where a minimum is taken away besides. Tokens' scales
// hold a 16th.
#pragma once

#include "backend/cuda/format.h"
#include "backend/cuda/prim/fragments.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda::few_bytes {

inline constexpr int kSuperColumns = 256;  ///< that have a scale of scales

/// Whether tokens have to bring what minimums are multiplied by.
constexpr bool has_minimums(quant::Type type) { return type == quant::Type::Q4_K; }

template <quant::Type kType>
struct Weights {
  static constexpr Format kFormat = *find_format(kType);
  static constexpr bool kSuper = kFormat.super > 0;
  static constexpr bool kMinimums = has_minimums(kType);
  static constexpr bool kSixteens = kType == quant::Type::Q6_K;  ///< a scale for 16 columns, not for 32
  static constexpr float kUnit = kType == quant::Type::Q6_K ? 4 : 16;
  static_assert(kFormat.codes == 16 && kFormat.scale == 2 && (kFormat.high == 0 || kFormat.high == 8));
};

/// Whether there are kernels that take weights of the type as tensor copies bring them (few_ring.cuh), and as
/// lanes copy them (few_bytes.cuh: Slot).
constexpr bool fits_ring(quant::Type type) {
  return type == quant::Type::Q4_0 || type == quant::Type::Q4_K || type == quant::Type::Q6_K;
}
constexpr bool fits_slot(quant::Type type) { return type == quant::Type::Q4_0 || type == quant::Type::Q4_K; }

/// The upper nibbles of four bytes as 16 (q - 8), in one instruction.
__device__ __forceinline__ uint32_t upper_nibbles(uint32_t bytes) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(result) : "r"(bytes), "r"(0xF0F0F0F0u), "r"(0x80808080u));
  return result;
}

/// Four codes of six bits as 4 (q - 32): their nibbles from bit 2 of a byte on, their upper bits from bit 6.
__device__ __forceinline__ uint32_t sixes(uint32_t nibbles, uint32_t upper) {
  const uint32_t low = (nibbles & 0x3C3C3C3Cu) | 0x80808080u;
  return (upper & 0xC0C0C0C0u) ^ low;
}

/// A block's operand from a lane's words of rows g and g + 8: columns 4t .. 4t + 3 in low nibbles, those 16
/// on in high ones. upper: the rows' top bits, of the first 16 columns and the others.
template <quant::Type kType>
__device__ __forceinline__ void make_operand(uint32_t up, uint32_t down, const uint2 (&upper)[2],
                                             uint32_t (&a)[4]) {
  if constexpr (kType == quant::Type::Q4_0) {
    a[0] = upper_nibbles(up << 4), a[1] = upper_nibbles(down << 4);
    a[2] = upper_nibbles(up), a[3] = upper_nibbles(down);
  } else if constexpr (kType == quant::Type::Q6_K) {
    // Bits 2t and 2t + 1 of a byte are column 4t's, 4t + 1's, ..
    const int places = 6 - static_cast<int>(threadIdx.x) % 4 * 2;
    a[0] = sixes(up << 2, upper[0].x << places), a[1] = sixes(down << 2, upper[1].x << places);
    a[2] = sixes(up >> 2, upper[0].y << places), a[3] = sixes(down >> 2, upper[1].y << places);
  } else {
    a[0] = up << 4 & 0xF0F0F0F0u, a[1] = down << 4 & 0xF0F0F0F0u;
    a[2] = up & 0xF0F0F0F0u, a[3] = down & 0xF0F0F0F0u;
  }
}

/// Byte `at` of a word as a whole number, 2^23 more than it is.
__device__ __forceinline__ float above_2_23(uint32_t word, int at) {
  return __uint_as_float(__byte_perm(word, 0x4B000000u, 0x7440 | at));
}

/// What two neighbouring blocks of a row are scaled with, `part` 1: their second 16 columns. word: their
/// piece of the plane; super: of the 256 columns.
template <quant::Type kType>
__device__ __forceinline__ float scale_of(uint32_t word, uint32_t super, int block, int part) {
  constexpr float kFactor = 16 / Weights<kType>::kUnit;
  if constexpr (kType == quant::Type::Q4_0) {
    return block == 0 ? fragments::low_half(word) : fragments::high_half(word);
  } else if constexpr (kType == quant::Type::Q6_K) {
    // 128 more than they are.
    const float whole = above_2_23(word ^ 0x80808080u, 2 * block + part) - (8388608.0f + 128.0f);
    return whole * (fragments::low_half(super) * kFactor);
  } else {  // a byte of each pair, exactly
    const float d = fragments::low_half(super);
    return fmaf(above_2_23(word, 2 * block), d, -8388608.0f * d);
  }
}

/// A scale of scales (and of minimums) of a row; beyond its last one, that one.
template <quant::Type kType>
__device__ __forceinline__ uint32_t load_super(const Matrix& m, int64_t row, int super) {
  static_assert(Weights<kType>::kSuper);
  const int supers = m.columns / kSuperColumns;
  const int64_t at = row * supers + min(super, supers - 1);
  if constexpr (Weights<kType>::kFormat.super == 4) {
    return __ldg(reinterpret_cast<const uint32_t*>(m.super) + at);
  } else {
    return __ldg(reinterpret_cast<const uint16_t*>(m.super) + at);
  }
}

/// Of scales of scales of 16 rows and 512 columns a lane has one: of row g + 8h and of the s-th 256 columns.
struct SuperOfLane {
  int g, h, s;

  __device__ __forceinline__ SuperOfLane() {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    g = lane / 4, h = lane % 4 / 2, s = lane % 2;
  }
};
/// They are in registers: each lane's own.
struct HeldSupers {
  uint32_t held;

  /// What row lane / 4 + 8h has.
  __device__ __forceinline__ uint32_t operator()(int h, int s) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    return __shfl_sync(kWholeWarp, held, lane / 4 * 4 + 2 * h + s);
  }
};
/// They lie in shared memory: of rows one after the other, the two of a row side by side.
template <quant::Type kType>
struct SharedSupers {
  static constexpr int kEach = Weights<kType>::kFormat.super, kBytes = 2 * kEach * 16;
  const char* at;  ///< null: there are none

  /// 256 columns on.
  __device__ __forceinline__ void advance() { at += kEach; }

  __device__ __forceinline__ uint32_t operator()(int h, int s) const {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4 + 8 * h;
    if constexpr (kEach == 4) return *reinterpret_cast<const uint32_t*>(at + row * 8 + s * 4);
    return *reinterpret_cast<const uint16_t*>(at + row * 4 + s * 2);
  }
  /// Where those of a flat row begin.
  __device__ __forceinline__ static const uint8_t* of_row(const Matrix& m, int64_t row) {
    return m.super + row * (m.columns / kSuperColumns) * kEach;
  }
  /// A lane asks for its own, of a row that has so many and from `first` (even) on: 4 bytes. Those of 2 bytes
  /// are an even number.
  __device__ __forceinline__ static void ask(const uint8_t* row, int supers, int first, uint32_t to) {
    const SuperOfLane own;
    if constexpr (kEach == 4) {
      copy_four(to + static_cast<uint32_t>((own.g + 8 * own.h) * 8 + own.s * 4),
                row + min(first + own.s, supers - 1) * 4);
    } else if (own.s == 0) {
      copy_four(to + static_cast<uint32_t>((own.g + 8 * own.h) * 4), row + first * 2);
    }
  }
  __device__ __forceinline__ static void copy_four(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  }
};

}  // namespace sluice::backend::cuda::few_bytes
