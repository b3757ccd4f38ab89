// Products of 16 rows of Q4_0 with strips of 8 tokens whose activations are eight bits: what kernels of few
// tokens are made of. A warp takes up to 512 columns of them from shared memory, where it has copied them for
// itself.
//
// A matrix instruction takes 16 outputs x a block of 32 columns x 8 tokens. Both nibbles of a byte come into
// the upper half of one, with their sign: a byte is 16 (q - 8). The sum of a block is an integer below 2^22
// and begins at the bits of 1.5 * 2^23, so that its bits are a float; two fused multiply-adds scale it.
#pragma once

#include "backend/cuda/prim/fragments.cuh"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda::few_bytes {

inline constexpr int kRows = 16;      ///< of weights
inline constexpr int kQuad = 128;     ///< columns: four blocks of 32
inline constexpr int kMostQuads = 4;  ///< of a warp

/// Where the 16 rows' quads lie in shared memory: codes, then scales. Rows lie an odd number of 16 bytes
/// apart: eight of them fall on different banks.
struct Slot {
  int32_t code_pitch, scale_pitch, bytes;

  static constexpr Slot of(int quads) {
    const int32_t codes = quads * 64 + 16, scales = ((quads + 1) / 2 | 1) * 16;
    return {codes, scales, kRows * (codes + scales)};
  }
};
/// A slot of as many quads as a warp takes at most.
inline constexpr Slot kWholeSlot = Slot::of(kMostQuads);

/// Where tokens lie: each token's codes, then its blocks' scales (or those of half blocks).
struct TokenRows {
  int32_t pitch, scales;

  static TokenRows of(int quads, int scales_of_quad = 4) {
    const int32_t scales = quads * kQuad + 16, bytes = scales + quads * scales_of_quad * 4;
    return {bytes + (16 - bytes % 128 + 128) % 128, scales};
  }
};

__device__ __forceinline__ void copy_codes(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void copy_scales(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}

/// Asks for `quads` quads of eight rows: flat row `row` is this lane's (they are lane / 4 on), to rows `half`
/// * 8 and on of the slot. all_quads: of a row.
__device__ __forceinline__ void ask_rows(const Matrix& m, int row, int all_quads, int first_quad, int quads,
                                         int half, const Slot& layout, uint32_t slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int quad = row * all_quads + first_quad;
  const uint8_t* const from = m.codes + (int64_t{quad} * 64 + lane % 4 * 16);
  const int in_slot = 8 * half + lane / 4;
  const uint32_t to = slot + static_cast<uint32_t>(in_slot * layout.code_pitch + lane % 4 * 16);
#pragma unroll
  for (int j = 0; j < kMostQuads; ++j)
    if (j < quads) copy_codes(to + 64 * j, from + 64 * j);
  if (lane % 4 < quads) {
    copy_scales(
        slot + static_cast<uint32_t>(kRows * layout.code_pitch + in_slot * layout.scale_pitch + lane % 4 * 8),
        m.scale + (quad + lane % 4) * 8);
  }
}

/// d = a[16, 32] b[32, 8] + begin, all signed bytes and integers. With g = lane / 4, t = lane % 4: a[0] holds
/// (row g, columns 4t ..), a[1] row g + 8, a[2] and a[3] those 16 columns on; b0 (rows 4t ..; column g), b1
/// 16 rows on; d as in mma_16x8x16.
__device__ __forceinline__ void mma_bytes(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                          int begin) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(begin));
}

/// The same of 16 columns: a[0] and a[1] of those above.
__device__ __forceinline__ void mma_bytes_half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int begin) {
  asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(a0), "r"(a1), "r"(b), "r"(begin));
}

/// Where store_codes puts the code of a row's column.
__device__ __forceinline__ int place_of_code(int column) {
  const int in_block = column % 32;
  return column / kQuad * kQuad + in_block % 16 / 4 * 32 + column % kQuad / 32 * 8 + in_block / 16 * 4 +
         in_block % 4;
}

/// Four numbers a lane, piece `piece` of eight of a quad's block `block`, to codes as the matrix
/// instruction's second operand wants them: lane t of the four that share a token has the 32 bytes from 32 t
/// on, block by block. A 16th of the blocks' scales (weights are 16 times what they should be), times
/// `factor`, goes to `scales`.
__device__ __forceinline__ void store_codes(float4 x, float factor, char* codes, float* scales, int block,
                                            int piece) {
  const float largest = lane_max(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))), 8);
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const auto code = [inverse](float v) { return __float2int_rn(v * inverse) & 255; };
  const int word = code(x.x) | code(x.y) << 8 | code(x.z) << 16 | code(x.w) << 24;
  *reinterpret_cast<int*>(codes + piece % 4 * 32 + block * 8 + piece / 4 * 4) = word;
  if (piece == 0) scales[block] = largest * (1.0f / (16 * 127)) * factor;
}
/// A warp's 128 columns.
__device__ __forceinline__ void store_codes(float4 x, float factor, char* codes, float* scales) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  store_codes(x, factor, codes, scales, lane / 8, lane % 8);
}

/// The upper nibbles of four bytes as 16 (q - 8), in one instruction.
__device__ __forceinline__ uint32_t upper_nibbles(uint32_t bytes) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;" : "=r"(result) : "r"(bytes), "r"(0xF0F0F0F0u), "r"(0x80808080u));
  return result;
}

/// Where a lane finds the tokens of its first strip: that of row lane / 4, and the scales of two, so many
/// bytes apart.
struct TokensAt {
  const char *codes, *scales;
  int apart;

  __device__ TokensAt(const char* tokens, const TokenRows& rows, int first_quad)
      : TokensAt(tokens, rows, first_quad, [](int token) { return token; }) {}
  /// at: the row in which a token lies.
  template <typename At>
  __device__ TokensAt(const char* tokens, const TokenRows& rows, int first_quad, const At& at) {
    const int lane = static_cast<int>(threadIdx.x) % 32, first = at(lane % 4 * 2);
    codes = tokens + at(lane / 4) * rows.pitch + lane % 4 * 32 + first_quad * kQuad;
    scales = tokens + first * rows.pitch + rows.scales + first_quad * 16;
    apart = (at(lane % 4 * 2 + 1) - first) * rows.pitch;
  }
};

/// Where a lane finds the codes of a quad's row for `ldmatrix`: rows a pitch apart.
struct PitchedCodes {
  uint32_t at;

  __device__ PitchedCodes(uint32_t slot, int pitch) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    at = slot + static_cast<uint32_t>(lane % 16 * pitch + lane / 16 * 16);
  }
  /// Blocks 2 half and 2 half + 1 of quad q.
  __device__ __forceinline__ uint32_t operator()(int q, int half) const { return at + 64 * q + 32 * half; }
};
/// As tensor copies leave them (tensor_map.h): the second eight rows lie kAcross bytes behind the first, two
/// quads' lines kAlong behind the two before.
template <int kAcross, int kAlong>
struct SwizzledCodes {
  uint32_t at;

  explicit __device__ SwizzledCodes(uint32_t slot) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane % 8;
    at = slot + static_cast<uint32_t>(lane / 8 % 2 * kAcross + row * 128 + ((lane / 16) ^ row) * 16);
  }
  __device__ __forceinline__ uint32_t operator()(int q, int half) const {
    return (at ^ static_cast<uint32_t>(q % 2 * 64 + half * 32)) + q / 2 * kAlong;
  }
};

/// What a lane needs of a strip's tokens for a quad: their codes, the scales of two. kHalves: a token has a
/// scale for 16 columns and not for 32.
template <bool kHalves>
struct StripTokens {
  uint4 words[2];
  float4 by[kHalves ? 2 : 1][2];

  /// Of strip n's quad q, counted from where `at` is; pitch: bytes from one token to the next.
  __device__ __forceinline__ StripTokens(const TokensAt& at, int pitch, int q, int n) {
    const char* const of = at.codes + n * 8 * pitch + q * kQuad;
    words[0] = *reinterpret_cast<const uint4*>(of), words[1] = *reinterpret_cast<const uint4*>(of + 16);
    const char* const scale = at.scales + n * 8 * pitch + q * (kHalves ? 32 : 16);
#pragma unroll
    for (int h = 0; h < (kHalves ? 2 : 1); ++h) {
#pragma unroll
      for (int j = 0; j < 2; ++j) by[h][j] = *reinterpret_cast<const float4*>(scale + 16 * h + j * at.apart);
    }
  }
  /// Of block i: the codes of its first 16 columns and the others, the scale of token j for those of half h.
  __device__ __forceinline__ uint2 block(int i) const {
    const uint4& two = words[i / 2];
    return i % 2 == 0 ? uint2{two.x, two.y} : uint2{two.z, two.w};
  }
  __device__ __forceinline__ float scale(int i, int h, int j) const {
    const float4& four = by[kHalves ? i / 2 : 0][j];
    const int at = kHalves ? i % 2 * 2 + h : i;
    return at == 0 ? four.x : at == 1 ? four.y : at == 2 ? four.z : four.w;
  }
};

/// Adds the products of kQuads quads with the tokens' from `at` on (pitch: bytes from one to the next). Sums
/// lie as in mma_16x8x16.
template <int kQuads, bool kHalves = false, int kStrips, typename Codes>
__device__ __forceinline__ void multiply_codes(const Codes& codes, const char* scales, int scale_pitch,
                                               const TokensAt& at, int pitch, float (&sum)[kStrips][4]) {
  constexpr int kBegin = 0x4B400000;  // the bits of 1.5 * 2^23
  constexpr float kLess = -12582912.0f;
  uint4 of_two[2];  // scales of two quads, of rows g and g + 8
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    uint32_t w[2][4];
    load_matrices(w[0], codes(q, 0)), load_matrices(w[1], codes(q, 1));
    if constexpr (kQuads == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint2 one = *reinterpret_cast<const uint2*>(scales + 8 * h * scale_pitch);
        of_two[h].x = one.x, of_two[h].y = one.y;
      }
    } else if (q % 2 == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        of_two[h] = *reinterpret_cast<const uint4*>(scales + 8 * h * scale_pitch + 8 * q);
    }
    uint32_t a[4][4];
    float d[4][2], less[4][2];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t up = w[i / 2][i % 2 * 2], down = w[i / 2][i % 2 * 2 + 1];
      a[i][0] = upper_nibbles(up << 4), a[i][1] = upper_nibbles(down << 4);
      a[i][2] = upper_nibbles(up), a[i][3] = upper_nibbles(down);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4& four = of_two[h];
        const __half2 pair =
            fragments::as_half2(q % 2 == 0 ? (i < 2 ? four.x : four.y) : (i < 2 ? four.z : four.w));
        d[i][h] = i % 2 == 0 ? __low2float(pair) : __high2float(pair);
        less[i][h] = d[i][h] * kLess;  // exact: a scale has 11 bits
      }
    }
#pragma unroll
    for (int n = 0; n < kStrips; ++n) {
      const StripTokens<kHalves> tokens(at, pitch, q, n);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 b = tokens.block(i);
        int c[2][4];
        if constexpr (kHalves) {
          mma_bytes_half(c[0], a[i][0], a[i][1], b.x, kBegin);
          mma_bytes_half(c[1], a[i][2], a[i][3], b.y, kBegin);
        } else {
          mma_bytes(c[0], a[i], b.x, b.y, kBegin);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int h = 0; h < (kHalves ? 2 : 1); ++h)
            sum[n][j] = fmaf(fmaf(__int_as_float(c[h][j]), d[i][j / 2], less[i][j / 2]),
                             tokens.scale(i, h, j % 2), sum[n][j]);
        }
      }
    }
  }
}

/// Those of a slot, from `begin` on.
template <int kQuads, bool kHalves = false, int kStrips>
__device__ __forceinline__ void multiply_quads(const char* slot, const Slot& layout, const TokensAt& at,
                                               int pitch, float (&sum)[kStrips][4], int begin = 0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const PitchedCodes codes(shared_address(slot) + static_cast<uint32_t>(begin * 64), layout.code_pitch);
  multiply_codes<kQuads, kHalves>(
      codes, slot + kRows * layout.code_pitch + lane / 4 * layout.scale_pitch + begin * 8, layout.scale_pitch,
      at, pitch, sum);
}

/// The same of up to kMostQuads.
template <int kStrips>
__device__ __forceinline__ void multiply(const char* slot, const Slot& layout, int quads, const TokensAt& at,
                                         int pitch, float (&sum)[kStrips][4]) {
  static_assert(kMostQuads == 4);
  switch (quads) {
    case 4: return multiply_quads<4>(slot, layout, at, pitch, sum);
    case 3: return multiply_quads<3>(slot, layout, at, pitch, sum);
    case 2: return multiply_quads<2>(slot, layout, at, pitch, sum);
    case 1: return multiply_quads<1>(slot, layout, at, pitch, sum);
    default: return;
  }
}

}  // namespace sluice::backend::cuda::few_bytes
