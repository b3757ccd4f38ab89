// What the products of int8_mma.cuh know of a weight's type: how 16 rows' codes become bytes of a matrix
// instruction's first operand, and what its sums are scaled with. Types differ here alone.
//
// A byte is kUnit times the code, taken to the byte's upper end, so that the fewest instructions move it
// there: signed, without the code's bias, or unsigned where a minimum is taken away besides. Tokens' scales
// hold a 16th.
#pragma once

#include "backend/cuda/host/format.h"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/prim/weight_fragments.cuh"

namespace sluice::backend::cuda::int8_mma {

inline constexpr int kSuperColumns = 256;  ///< that have a scale of scales

/// Whether tokens have to bring what minimums are multiplied by.
constexpr bool has_minimums(quant::Type type) {
  return type == quant::Type::Q4_K || type == quant::Type::Q5_K;
}
/// Whether codes are places in a table of 16 bytes.
constexpr bool by_table(quant::Type type) {
  return type == quant::Type::IQ4_NL || type == quant::Type::IQ4_XS || type == quant::Type::MXFP4;
}

template <quant::Type kType>
struct Weights {
  static constexpr Format kFormat = *find_format(kType);
  static constexpr bool kSuper = kFormat.super > 0;
  static constexpr bool kMinimums = has_minimums(kType);
  static constexpr bool kSixteens = kType == quant::Type::Q6_K;  ///< a scale for 16 columns, not for 32
  static constexpr bool kWhole = kFormat.codes == 32;            ///< a code is a byte
  static constexpr float kUnit = kWhole || kType == quant::Type::IQ4_NL || kType == quant::Type::IQ4_XS ? 1
                                 : kType == quant::Type::Q6_K                                           ? 4
                                 : kFormat.high == 4                                                    ? 8
                                                                                                        : 16;
  /// Bytes of a quad's scales in a row's.
  static constexpr int kQuadScales = 4 * kFormat.scale;
  static_assert(kFormat.codes >= 16 && kFormat.scale <= 2);
};

/// Whether there are kernels that take weights of the type as TMA copies bring them (weight_ring.cuh), and as
/// lanes copy them (int8_mma.cuh: Slot).
constexpr bool fits_ring(quant::Type type) {
  using quant::Type;
  return type == Type::Q4_0 || type == Type::Q4_K || type == Type::Q5_0 || type == Type::Q5_K ||
         type == Type::Q6_K || type == Type::Q8_0 || by_table(type);
}
constexpr bool fits_slot(quant::Type type) { return type == quant::Type::Q4_0 || type == quant::Type::Q4_K; }

/// Calls `call` with the type, one that rings take.
template <typename Call>
auto with_type(quant::Type type, const Call& call) {
  using quant::Type;
  switch (type) {
    case Type::Q4_K: return call.template operator()<Type::Q4_K>();
    case Type::Q5_0: return call.template operator()<Type::Q5_0>();
    case Type::Q5_K: return call.template operator()<Type::Q5_K>();
    case Type::Q6_K: return call.template operator()<Type::Q6_K>();
    case Type::Q8_0: return call.template operator()<Type::Q8_0>();
    case Type::IQ4_NL: return call.template operator()<Type::IQ4_NL>();
    case Type::IQ4_XS: return call.template operator()<Type::IQ4_XS>();
    case Type::MXFP4: return call.template operator()<Type::MXFP4>();
    default: return call.template operator()<Type::Q4_0>();
  }
}

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

/// Four codes of five bits as 8 (q - 16), or as 8q: their nibbles from bit 3 of a byte on, their upper bits
/// at bit 7.
template <bool kSigned>
__device__ __forceinline__ uint32_t fives(uint32_t nibbles, uint32_t upper) {
  const uint32_t code = (nibbles & 0x78787878u) | (upper & 0x80808080u);
  return kSigned ? code ^ 0x80808080u : code;
}

/// The entries of eight nibbles in a table of 16 bytes: of the low ones, of the high ones.
__device__ __forceinline__ uint2 look_up(uint32_t nibbles, const uint32_t (&table)[4]) {
  const uint32_t first = nibbles & 0x77777777u;
  // Of each nibble: the entry of either half of the table, then the half that its top bit says.
  const uint32_t half = 0x32103210u | (nibbles & 0x88888888u) >> 1;
  const uint32_t a =
      __byte_perm(__byte_perm(table[0], table[1], first), __byte_perm(table[2], table[3], first), half);
  const uint32_t b = __byte_perm(__byte_perm(table[0], table[1], first >> 16),
                                 __byte_perm(table[2], table[3], first >> 16), half >> 16);
  return {__byte_perm(a, b, 0x6420), __byte_perm(a, b, 0x7531)};
}

/// A block's operand from a lane's words of rows g and g + 8: columns 4t .. 4t + 3 in low nibbles, those 16
/// on in high ones. upper: the rows' top bits, of the first 16 columns and the others; of types with one a
/// code, of both in the first word.
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
  } else if constexpr (Weights<kType>::kFormat.high == 4) {
    // Bit t of a byte is column 4t's, 4t + 1's, .., bit 4 + t that of those 16 on.
    constexpr bool kSigned = !Weights<kType>::kMinimums;
    const int t = static_cast<int>(threadIdx.x) % 4;
    a[0] = fives<kSigned>(up << 3, upper[0].x << (7 - t));
    a[1] = fives<kSigned>(down << 3, upper[1].x << (7 - t));
    a[2] = fives<kSigned>(up >> 1, upper[0].x << (3 - t));
    a[3] = fives<kSigned>(down >> 1, upper[1].x << (3 - t));
  } else if constexpr (by_table(kType)) {
    // E2M1 times 16; or -127 -104 -83 -65, -49 -35 -22 -10, 1 13 25 38, 53 69 89 113.
    constexpr bool kFour = kType == quant::Type::MXFP4;
    constexpr uint32_t table[4] = {kFour ? 0x18100800u : 0xbfad9881u, kFour ? 0x60403020u : 0xf6eaddcfu,
                                   kFour ? 0xe8f0f800u : 0x26190d01u, kFour ? 0xa0c0d0e0u : 0x71594535u};
    const uint2 first = look_up(up, table), second = look_up(down, table);
    a[0] = first.x, a[1] = second.x, a[2] = first.y, a[3] = second.y;
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
/// piece of the plane, from its lowest bits on; super: of the 256 columns.
template <quant::Type kType>
__device__ __forceinline__ float scale_of(uint32_t word, uint32_t super, int block, int part) {
  constexpr float kFactor = 16 / Weights<kType>::kUnit;
  if constexpr (kType == quant::Type::MXFP4) {  // a power of two; 2^-127 is subnormal
    const uint32_t exponent = min(word >> 8 * block & 255u, 254u);
    return __uint_as_float(exponent == 0 ? 0x00400000u : exponent << 23);
  } else if constexpr (kType == quant::Type::IQ4_XS) {
    const float whole = above_2_23(word ^ 0x80808080u, block) - (8388608.0f + 128.0f);
    return whole * (fragments::low_half(super) * kFactor);
  } else if constexpr (!Weights<kType>::kSuper) {
    const float d = block == 0 ? fragments::low_half(word) : fragments::high_half(word);
    return kFactor == 1 ? d : d * kFactor;
  } else if constexpr (kType == quant::Type::Q6_K) {
    // 128 more than they are.
    const float whole = above_2_23(word ^ 0x80808080u, 2 * block + part) - (8388608.0f + 128.0f);
    return whole * (fragments::low_half(super) * kFactor);
  } else {  // a byte of each pair, exactly
    const float d = fragments::low_half(super) * kFactor;
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
/// They lie in shared memory, eight bytes a row. Where they are two bytes each and a row has an odd number,
/// every other row begins amid the four bytes that a copy takes.
template <quant::Type kType>
struct SharedSupers {
  static constexpr int kEach = Weights<kType>::kFormat.super, kBytes = kEach > 0 ? 8 * 16 : 0;
  const char* at;  ///< of this lane's row, lane / 4; null: there are none

  /// slot: of 16 rows, the first of which is an even flat row; count: of a row; first: as it was asked for.
  __device__ __forceinline__ static SharedSupers of(const char* slot, int count, int first = 0) {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    return {slot + row * 8 + (kEach == 2 ? (((row & count) ^ first) & 1) * 2 : 0)};
  }
  /// 256 columns on.
  __device__ __forceinline__ void advance() { at += kEach; }

  /// What row lane / 4 + 8h has.
  __device__ __forceinline__ uint32_t operator()(int h, int s) const {
    const char* const own = at + h * 64 + s * kEach;
    if constexpr (kEach == 4) return *reinterpret_cast<const uint32_t*>(own);
    return *reinterpret_cast<const uint16_t*>(own);
  }
  /// Where those of a flat row begin.
  __device__ __forceinline__ static const uint8_t* of_row(const Matrix& m, int64_t row) {
    return m.super + row * (m.columns / kSuperColumns) * kEach;
  }
  /// A lane asks for its own, of a row that has so many and from `first` on: 4 bytes.
  __device__ __forceinline__ static void ask(const uint8_t* row, int supers, int first, uint32_t to) {
    const SuperOfLane own;
    to += static_cast<uint32_t>((own.g + 8 * own.h) * 8 + own.s * 4);
    if constexpr (kEach == 4) {
      copy_four(to, row + min(first + own.s, supers - 1) * 4);
    } else {
      const uint8_t* const from = row + first * 2;
      const bool amid = (reinterpret_cast<uintptr_t>(from) & 2) != 0;
      if (own.s == 0 || (amid && first + 1 < supers)) copy_four(to, from - (amid ? 2 : 0) + own.s * 4);
    }
  }
  __device__ __forceinline__ static void copy_four(uint32_t to, const void* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  }
};

}  // namespace sluice::backend::cuda::int8_mma
