// Products of 16 rows with n-tiles of 8 tokens whose activations are eight bits: what kernels of few tokens
// are made of. A warp takes up to 512 columns of them from shared memory, where it has copied them for
// itself. The weights' type is a policy (int8_weights.cuh).
//
// A matrix instruction takes 16 outputs x a block of 32 columns x 8 tokens. Both nibbles of a byte come into
// the upper half of one: of Q4_0 with their sign, 16 (q - 8). The sum of a block is an integer below 2^22
// and begins at the bits of 1.5 * 2^23, so that its bits are a float; two fused multiply-adds scale it.
//
// A minimum that a block's weights lie above (Q4_K: w = d s q - dmin m) multiplies the sum of a token's
// codes, which whoever codes it leaves beside the scale. That is a product of matrices, too: of whole numbers
// m and of sums, four blocks an instruction, times dmin.
#pragma once

#include "backend/cuda/prim/int8_weights.cuh"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda::int8_mma {

inline constexpr int kRows = 16;      ///< of weights
inline constexpr int kQuad = 128;     ///< columns: four blocks of 32
inline constexpr int kMostQuads = 4;  ///< of a warp

/// Where the 16 rows' quads lie in shared memory: codes, then scales, then top bits. Rows lie an odd number
/// of 16 bytes apart: eight of them fall on different banks.
struct Slot {
  static constexpr int kHighPitch = kMostQuads * 32 + 16;
  int32_t code_pitch, scale_pitch, bytes;

  static constexpr Slot of(int quads, bool with_high = false) {
    const int32_t codes = quads * 64 + 16, scales = ((quads + 1) / 2 | 1) * 16;
    return {codes, scales, kRows * (codes + scales + (with_high ? kHighPitch : 0))};
  }
  SLUICE_BOTH int high() const { return kRows * (code_pitch + scale_pitch); }
};

/// Where tokens lie: each token's codes, then its blocks' scales (or those of half blocks) and, where weights
/// have minimums, those times the sums of as many codes, in floats of 19 bits.
struct TokenRows {
  int32_t pitch, scales, sums;  ///< sums: 0: there are none

  static TokenRows of(int quads, bool with_sums, int scales_of_quad = 4) {
    const int32_t scales = quads * kQuad + 16, sums = scales + quads * scales_of_quad * 4;
    const int32_t bytes = sums + (with_sums ? quads * scales_of_quad * 4 : 0);
    return {bytes + (16 - bytes % 128 + 128) % 128, scales, with_sums ? sums : 0};
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
/// The same of top bits of six bits' codes.
__device__ __forceinline__ void ask_high(const Matrix& m, int row, int all_quads, int first_quad, int quads,
                                         int half, const Slot& layout, uint32_t slot) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane % 4 >= quads) return;
  const uint8_t* const from = m.high + (int64_t{row} * all_quads + first_quad + lane % 4) * 32;
  const uint32_t to =
      slot + static_cast<uint32_t>(layout.high() + (8 * half + lane / 4) * Slot::kHighPitch + lane % 4 * 32);
  copy_codes(to, from), copy_codes(to + 16, from + 16);
}

/// d = a[16, 32] b[32, 8] + begin, bytes (b's signed, a's, too, or not) and integers. With g = lane / 4, t =
/// lane % 4: a[0] holds (row g, columns 4t ..), a[1] row g + 8, a[2] and a[3] those 16 columns on; b0 (rows
/// 4t
/// ..; column g), b1 16 rows on; d as in mma_16x8x16.
template <bool kSigned>
__device__ __forceinline__ void mma_bytes(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                          int begin) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(begin));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(begin));
  }
}

/// The same of 16 columns: a[0] and a[1] of those above.
template <bool kSigned>
__device__ __forceinline__ void mma_bytes_half(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t b, int begin) {
  if constexpr (kSigned) {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(begin));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a0), "r"(a1), "r"(b), "r"(begin));
  }
}

/// d = a[16, 4 or 8] b[4 or 8, 8], of floats' upper 19 bits: a[0] holds (row g, column t), a[1] row g + 8,
/// b[0] (row t; column g); the others those 4 columns and rows on; d as above.
__device__ __forceinline__ void mma_floats(float (&d)[4], const float (&a)[2], float b) {
  asm("mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%7,%7,%7};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(b)), "f"(0.0f));
}
__device__ __forceinline__ void mma_floats(float (&d)[4], const float (&a)[2], const float (&a_on)[2],
                                           float b, float b_on) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a_on[0])),
        "r"(__float_as_uint(a_on[1])), "r"(__float_as_uint(b)), "r"(__float_as_uint(b_on)), "f"(0.0f));
}
/// A number rounded to those 19 bits.
__device__ __forceinline__ float rounded_to_19_bits(float value) {
  uint32_t bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}

/// Where store_codes puts the code of a row's column.
__device__ __forceinline__ int place_of_code(int column) {
  const int in_block = column % 32;
  return column / kQuad * kQuad + in_block % 16 / 4 * 32 + column % kQuad / 32 * 8 + in_block / 16 * 4 +
         in_block % 4;
}

/// Four numbers a lane, piece `piece` of eight of a row's block `block` of quad `quad`, to codes as the
/// matrix instruction's second operand wants them: lane t of the four that share a token has the 32 bytes
/// from 32 t on, block by block. A 16th of the blocks' scales goes behind them (weights are 16 times what
/// they should be), and what minimums are multiplied by where the row has a place for it.
__device__ __forceinline__ void store_codes(float4 x, char* row, const TokenRows& at, int quad, int block,
                                            int piece) {
  const float largest = lane_max(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))), 8);
  const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
  const auto code = [inverse](float v) { return __float2int_rn(v * inverse) & 255; };
  const int word = code(x.x) | code(x.y) << 8 | code(x.z) << 16 | code(x.w) << 24;
  *reinterpret_cast<int*>(row + quad * kQuad + piece % 4 * 32 + block * 8 + piece / 4 * 4) = word;
  const float scale = largest * (1.0f / (16 * 127));
  if (piece == 0) reinterpret_cast<float*>(row + at.scales)[quad * 4 + block] = scale;
  if (at.sums == 0) return;
  int sum = __dp4a(word, 0x01010101, 0);
#pragma unroll
  for (int step = 4; step > 0; step /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, step);
  if (piece == 0) {
    reinterpret_cast<float*>(row + at.sums)[quad * 4 + block] =
        rounded_to_19_bits(scale * static_cast<float>(sum));
  }
}
/// A warp's 128 columns.
__device__ __forceinline__ void store_codes(float4 x, char* row, const TokenRows& at, int quad) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  store_codes(x, row, at, quad, lane / 8, lane % 8);
}

/// Where a lane finds the tokens of its first n-tile: that of row lane / 4, and the scales of two, so many
/// bytes apart; and, for minimums, block lane % 4 of each quad of the former. kHalves: a token has a scale
/// for 16 columns and not for 32.
template <bool kHalves = false>
struct TokensAt {
  static constexpr int kScaleBytes = kHalves ? 32 : 16;  ///< of a quad
  const char *codes, *scales, *own_sums;
  int apart;

  __device__ TokensAt(const char* tokens, const TokenRows& rows, int first_quad)
      : TokensAt(tokens, rows, first_quad, [](int token) { return token; }) {}
  /// at: the row in which a token lies.
  template <typename At>
  __device__ TokensAt(const char* tokens, const TokenRows& rows, int first_quad, const At& at) {
    const int lane = static_cast<int>(threadIdx.x) % 32, first = at(lane % 4 * 2), t = lane % 4;
    const char* const own = tokens + at(lane / 4) * rows.pitch;
    codes = own + t * 32 + first_quad * kQuad;
    scales = tokens + first * rows.pitch + rows.scales + first_quad * kScaleBytes;
    own_sums = own + rows.sums + first_quad * kScaleBytes + t * (kScaleBytes / 4);
    apart = (at(lane % 4 * 2 + 1) - first) * rows.pitch;
  }
  __device__ __forceinline__ void advance(int quads) {
    codes += quads * kQuad;
    scales += quads * kScaleBytes, own_sums += quads * kScaleBytes;
  }
  /// Of n-tile n's quad q, counted from here: what a minimum is multiplied by. pitch: bytes from one token to
  /// the next.
  __device__ __forceinline__ float sum_of_block(int pitch, int q, int n) const {
    const char* const sum = own_sums + n * 8 * pitch + q * kScaleBytes;
    if constexpr (kHalves) {
      const float2 both = *reinterpret_cast<const float2*>(sum);
      return rounded_to_19_bits(both.x + both.y);
    } else {
      return *reinterpret_cast<const float*>(sum);
    }
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
/// As TMA copies leave them (host/tensor_map.h): the second eight rows lie kAcross bytes behind the first,
/// two quads' lines kAlong behind the two before.
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
  /// Two quads on.
  __device__ __forceinline__ void advance() { at += kAlong; }
};
/// The same of codes that are bytes: a line is a quad, whose block `block` this is.
template <int kAcross, int kAlong>
struct SwizzledBytes {
  uint32_t at;

  explicit __device__ SwizzledBytes(uint32_t slot) : at(SwizzledCodes<kAcross, kAlong>(slot).at) {}
  __device__ __forceinline__ uint32_t operator()(int q, int block) const {
    return (at ^ static_cast<uint32_t>(block * 32)) + q * kAlong;
  }
  /// Two quads on.
  __device__ __forceinline__ void advance() { at += 2 * kAlong; }
};

/// What a lane needs of an n-tile's tokens for a quad: their codes, the scales of two. kHalves: a token has a
/// scale for 16 columns and not for 32.
template <bool kHalves>
struct NTileTokens {
  uint4 words[2];
  float4 by[kHalves ? 2 : 1][2];

  /// Of n-tile n's quad q, counted from where `at` is; pitch: bytes from one token to the next.
  __device__ __forceinline__ NTileTokens(const TokensAt<kHalves>& at, int pitch, int q, int n) {
    const char* const of = at.codes + n * 8 * pitch + q * kQuad;
    words[0] = *reinterpret_cast<const uint4*>(of), words[1] = *reinterpret_cast<const uint4*>(of + 16);
    const char* const scale = at.scales + n * 8 * pitch + q * at.kScaleBytes;
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

/// Where a lane finds a piece of 16 rows, and what of it is not in shared memory. kHighPitch: of top bits
/// that lie row by row; 0: as TMA copies leave them.
template <quant::Type kType, typename Codes, typename Supers = HeldSupers, int kHighPitch = 0>
struct Piece {
  static constexpr int kHigh = Weights<kType>::kFormat.high;
  Codes codes;
  const char* scales;  ///< of row lane / 4, as many bytes before the next one's
  int scale_pitch;
  Supers supers;
  const char* high = nullptr;  ///< of row lane / 4: TMA copies leave 16 blocks', swizzled
  int odd = 0;                 ///< 1: the first quad is the second of its 256 columns

  int first_unit = 0;  ///< of 16 bytes of top bits

  /// Two quads on.
  __device__ __forceinline__ void advance() {
    codes.advance(), supers.advance();
    scales += 2 * Weights<kType>::kQuadScales, first_unit += kHigh / 2;
  }
  /// Top bits of blocks 2k and 2k + 1 of quad q, of row g + 8h: two words each, or one.
  __device__ __forceinline__ uint4 upper(int q, int k, int h) const {
    const int row = static_cast<int>(threadIdx.x) % 32 / 4;
    if constexpr (kHighPitch > 0) {
      const char* const at = high + 8 * h * kHighPitch + (2 * q + k) * 2 * kHigh;
      if constexpr (kHigh == 8) return *reinterpret_cast<const uint4*>(at);
      const uint2 two = *reinterpret_cast<const uint2*>(at);
      return {two.x, 0, two.y, 0};
    } else if constexpr (kHigh == 8) {
      return *reinterpret_cast<const uint4*>(high + h * 1024 + ((first_unit + 2 * q + k) ^ row) * 16);
    } else {
      const uint2 two =
          *reinterpret_cast<const uint2*>(high + h * 512 + ((first_unit + q) ^ (row / 2)) * 16 + k * 8);
      return {two.x, 0, two.y, 0};
    }
  }
};

/// A quad of 16 rows, ready to be multiplied.
template <quant::Type kType>
struct Quad {
  static constexpr int kParts = Weights<kType>::kSixteens ? 2 : 1;
  static constexpr float kLess = -12582912.0f;
  uint32_t a[4][4];
  float d[4][kParts][2], less[4][kParts][2];  ///< of rows g and g + 8
  float minimum[2], by[2];                    ///< of block lane % 4; what they are scaled with

  /// words: a row's scales of two blocks and of the next two, of rows g and g + 8.
  template <typename Piece>
  __device__ __forceinline__ Quad(const Piece& piece, int q, const uint32_t (&words)[2][2],
                                  const uint32_t (&super)[2]) {
    if constexpr (Weights<kType>::kWhole) {
#pragma unroll
      for (int i = 0; i < 4; ++i) load_matrices(a[i], piece.codes(q, i));
    }
    uint32_t w[2][4];
#pragma unroll
    for (int k = 0; k < (Weights<kType>::kWhole ? 0 : 2); ++k) {
      load_matrices(w[k], piece.codes(q, k));
      uint4 upper[2] = {};
      if constexpr (Weights<kType>::kFormat.high > 0)
        upper[0] = piece.upper(q, k, 0), upper[1] = piece.upper(q, k, 1);
      make_operand<kType>(w[k][0], w[k][1], {{upper[0].x, upper[0].y}, {upper[1].x, upper[1].y}}, a[2 * k]);
      make_operand<kType>(w[k][2], w[k][3], {{upper[0].z, upper[0].w}, {upper[1].z, upper[1].w}},
                          a[2 * k + 1]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          d[i][part][h] = scale_of<kType>(words[h][i / 2], super[h], i % 2, part);
          less[i][part][h] = d[i][part][h] * kLess;  // exact: a scale has no more than 18 bits
        }
      }
    }
    if constexpr (Weights<kType>::kMinimums) {
      const int t = static_cast<int>(threadIdx.x) % 4;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        minimum[h] = static_cast<float>(
            static_cast<uint8_t>(piece.scales[8 * h * piece.scale_pitch + 8 * q + 2 * t + 1]));
        by[h] = fragments::high_half(super[h]) * -16.0f;
      }
    }
  }
};

/// Adds the products of kQuads quads (one, or such as begin at whole 256 columns where types have scales of
/// scales) with the tokens' from `at` on (pitch: bytes from one to the next). Sums lie as in mma_16x8x16.
template <quant::Type kType, int kQuads, bool kHalves = false, int kNTiles, typename Piece>
__device__ __forceinline__ void multiply_codes(const Piece& piece, const TokensAt<kHalves>& at, int pitch,
                                               float (&sum)[kNTiles][4]) {
  using W = Weights<kType>;
  constexpr int kBegin = 0x4B400000;  // the bits of 1.5 * 2^23
  constexpr int kParts = kHalves || W::kSixteens ? 2 : 1;
  uint4 of_two[2];  // scales of two quads, of rows g and g + 8
  uint32_t super[2] = {};
  float minimum[2] = {}, before[kNTiles] = {};  // of the even quad: minimums, what they are multiplied by
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    if constexpr (kQuads == 1) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const char* const at = piece.scales + 8 * h * piece.scale_pitch;
        if constexpr (W::kFormat.scale == 2) {
          const uint2 one = *reinterpret_cast<const uint2*>(at);
          of_two[h].x = one.x, of_two[h].y = one.y;
        } else {
          const uint32_t one = *reinterpret_cast<const uint32_t*>(at);
          of_two[h].x = one, of_two[h].y = one >> 16;
        }
      }
    } else if (q % 2 == 0) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const char* const at = piece.scales + 8 * h * piece.scale_pitch + W::kQuadScales * q;
        if constexpr (W::kFormat.scale == 2) {
          of_two[h] = *reinterpret_cast<const uint4*>(at);
        } else {  // two blocks' in the lower half of a word
          const uint2 two = *reinterpret_cast<const uint2*>(at);
          of_two[h] = {two.x, two.x >> 16, two.y, two.y >> 16};
        }
      }
    }
    if constexpr (W::kSuper) {
      if (q % 2 == 0) {
#pragma unroll
        for (int h = 0; h < 2; ++h) super[h] = piece.supers(h, (piece.odd + q) / 2);
      }
    }
    uint32_t words[2][2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      words[h][0] = q % 2 == 0 ? of_two[h].x : of_two[h].z;
      words[h][1] = q % 2 == 0 ? of_two[h].y : of_two[h].w;
    }
    const Quad<kType> quad(piece, q, words, super);
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
      const NTileTokens<kHalves> tokens(at, pitch, q, n);
      const float own_sum = W::kMinimums ? at.sum_of_block(pitch, q, n) : 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const uint2 b = tokens.block(i);
        int c[2][4];
        if constexpr (kParts == 2) {
          mma_bytes_half<!W::kMinimums>(c[0], quad.a[i][0], quad.a[i][1], b.x, kBegin);
          mma_bytes_half<!W::kMinimums>(c[1], quad.a[i][2], quad.a[i][3], b.y, kBegin);
        } else {
          mma_bytes<!W::kMinimums>(c[0], quad.a[i], b.x, b.y, kBegin);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) {
#pragma unroll
          for (int part = 0; part < kParts; ++part) {
            const int own = W::kSixteens ? part : 0;
            float scaled = fmaf(__int_as_float(c[part][j]), quad.d[i][own][j / 2], quad.less[i][own][j / 2]);
            if constexpr (kType == quant::Type::MXFP4)  // whose scales may be too large for `less`
              scaled = (__int_as_float(c[part][j]) + Quad<kType>::kLess) * quad.d[i][own][j / 2];
            sum[n][j] = fmaf(scaled, tokens.scale(i, part, j % 2), sum[n][j]);
          }
        }
      }
      if constexpr (W::kMinimums) {
        if (kQuads > 1 && q % 2 == 0) {  // with the next quad's: these are scaled alike
          before[n] = own_sum;
          continue;
        }
        float less[4];
        if constexpr (kQuads > 1) {
          mma_floats(less, minimum, quad.minimum, before[n], own_sum);
        } else {
          mma_floats(less, quad.minimum, own_sum);
        }
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[n][j] = fmaf(less[j], quad.by[j / 2], sum[n][j]);
      }
    }
    if constexpr (W::kMinimums) minimum[0] = quad.minimum[0], minimum[1] = quad.minimum[1];
  }
}

/// The same of `pairs` pairs of quads of a piece that TMA copies have brought, from its first on; `at` goes
/// on. One loop: a launch runs this code some times alone, so that the way to it counts.
template <quant::Type kType, int kNTiles, typename Piece>
__device__ __forceinline__ void multiply_pairs(Piece piece, int pairs, TokensAt<>& at, int pitch,
                                               float (&sum)[kNTiles][4]) {
#pragma unroll 1
  for (int i = 0; i < pairs; ++i) {
    multiply_codes<kType, 2>(piece, at, pitch, sum);
    piece.advance(), at.advance(2);
  }
}

/// Those of a slot, from `begin` on. first_quad: which of its row the slot's first one is. supers: of the 512
/// columns that it begins in.
template <quant::Type kType, int kQuads, bool kHalves = false, int kNTiles>
__device__ __forceinline__ void multiply_quads(const char* slot, const Slot& layout, uint32_t supers,
                                               int first_quad, const TokensAt<kHalves>& at, int pitch,
                                               float (&sum)[kNTiles][4], int begin = 0) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const PitchedCodes codes(shared_address(slot) + static_cast<uint32_t>(begin * 64), layout.code_pitch);
  constexpr bool kHigh = Weights<kType>::kFormat.high > 0;
  multiply_codes<kType, kQuads, kHalves>(
      Piece < kType, PitchedCodes, HeldSupers,
      kHigh ? Slot::kHighPitch
            : 0 > {codes,
                   slot + kRows * layout.code_pitch + lane / 4 * layout.scale_pitch + begin * 8,
                   layout.scale_pitch,
                   {supers},
                   kHigh ? slot + layout.high() + lane / 4 * Slot::kHighPitch + begin * 32 : nullptr,
                   first_quad % 2 + begin},
      at, pitch, sum);
}

/// The same of up to kMostQuads.
template <quant::Type kType, int kNTiles>
__device__ __forceinline__ void multiply(const char* slot, const Slot& layout, uint32_t supers,
                                         int first_quad, int quads, TokensAt<> at, int pitch,
                                         float (&sum)[kNTiles][4]) {
  static_assert(kMostQuads == 4);
  if constexpr (Weights<kType>::kSuper) {  // quads in pairs need not be those of a scale of scales
    const auto one_by_one = [&]<int kCount>() {
#pragma unroll
      for (int q = 0; q < kCount; ++q) {
        multiply_quads<kType, 1>(slot, layout, supers, first_quad, at, pitch, sum, q);
        at.advance(1);
      }
    };
    switch (quads) {
      case 4: return one_by_one.template operator()<4>();
      case 3: return one_by_one.template operator()<3>();
      case 2: return one_by_one.template operator()<2>();
      case 1: return one_by_one.template operator()<1>();
      default: return;
    }
  } else {
    switch (quads) {
      case 4: return multiply_quads<kType, 4>(slot, layout, supers, first_quad, at, pitch, sum);
      case 3: return multiply_quads<kType, 3>(slot, layout, supers, first_quad, at, pitch, sum);
      case 2: return multiply_quads<kType, 2>(slot, layout, supers, first_quad, at, pitch, sum);
      case 1: return multiply_quads<kType, 1>(slot, layout, supers, first_quad, at, pitch, sum);
      default: return;
    }
  }
}

/// What this lane holds (SuperOfLane) of 16 rows, whose flat number `row` says (of 16), and of the 512
/// columns that `first_quad` begins in; nothing of types without.
template <quant::Type kType, typename Row>
__device__ __forceinline__ uint32_t ask_supers(const Matrix& m, int first_quad, const Row& row) {
  if constexpr (Weights<kType>::kSuper) {
    const SuperOfLane lane;
    return load_super<kType>(m, row(lane.g + 8 * lane.h), first_quad / 2 + lane.s);
  } else {
    return 0;
  }
}

}  // namespace sluice::backend::cuda::int8_mma
