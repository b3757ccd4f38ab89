// Many rows at once on AMX tiles of bf16. A product of 16 x 16 x 32 is one instruction of 16 cycles (1,024
// FLOP a cycle); two panels and two tiles of rows share every load. Unpacking a panel costs about as much as
// two tiles of rows, which is why it happens once for all of them. int8 tiles need no unpacking, but every 32
// columns their sums would have to leave the tiles to be scaled.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "backend/cpu/simd/tiles.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the codecs are written against it.
#include "backend/cpu/simd/codecs.h"

/// Pairs of bf16 out of two vectors of floats: lane r holds even's number in its low half, odd's in its high
/// one.
inline __m512i pairs_of(__m512 even, __m512 odd) {
  alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                           21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                           11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i apart = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  return _mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), apart);
}

/// 32 columns: scale * (code - offset) + minimum as one fused step each.
template <typename Codec>
inline __attribute__((always_inline)) void unpack_group(const Codec& codec, int group, uint16_t* pairs) {
  constexpr int kSteps = 8 / Codec::kHalves;
  const I low_byte = Lanes::all(255);
  for (int half = 0; half < Codec::kHalves; ++half) {
    const F scale = codec.scale(group, half);
    F start = Lanes::mul(scale, Lanes::all_f(-static_cast<float>(Codec::kOffset)));
    if constexpr (Codec::kMinimum) start = Lanes::add(start, codec.minimum(group, half));
    for (int j = half * kSteps; j < (half + 1) * kSteps; ++j) {
      const I codes = codec.code(group, j);
      F numbers[4];
      for (int b = 0; b < 4; ++b) {
        const I code = Lanes::bit_and(Lanes::shift_right(codes, 8 * b), low_byte);
        numbers[b] = Lanes::fma(Lanes::to_float(code), scale, start);
      }
      _mm512_storeu_si512(pairs + (2 * j) * 2 * kPanelRows, pairs_of(numbers[0], numbers[1]));
      _mm512_storeu_si512(pairs + (2 * j + 1) * 2 * kPanelRows, pairs_of(numbers[2], numbers[3]));
    }
  }
}

template <typename Codec>
void unpack(const uint8_t* panel, int64_t columns, uint16_t* pairs, Prefetch prefetch) {
  constexpr int kBlockColumns = Codec::kGroups * kQuantColumns;
  for (int64_t c = 0; c < columns; c += kBlockColumns, panel += Codec::kPackedBytes) {
    for (int line = 0; line < Codec::kPackedBytes; line += 64) {
      Lanes::prefetch_far(panel + prefetch.far_bytes + line);
      Lanes::prefetch(panel + prefetch.near_bytes + line);
    }
    const Codec codec(panel, 0);
    for (int g = 0; g < Codec::kGroups; ++g, pairs += kQuantColumns * kPanelRows)
      unpack_group(codec, g, pairs);
  }
}

void round_row(const float* x, int64_t columns, uint16_t* out) {
  for (int64_t c = 0; c < columns; c += kQuantColumns) {
    const __m512bh both = _mm512_cvtne2ps_pbh(Lanes::load_f(x + c + 16), Lanes::load_f(x + c));
    _mm512_storeu_si512(out + c, reinterpret_cast<__m512i>(both));
  }
}

/// LDTILECFG's 64 bytes (Intel's Architecture Instruction Set Extensions reference, chapter 3): all tiles are
/// 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

/// Tiles 0 and 1: the sums of the first 16 rows with the two panels; 2 and 3: of the other 16; 4 and 5:
/// activations; 6 and 7: weights.
void product(const uint16_t* pairs0, const uint16_t* pairs1, int64_t columns, const uint16_t* x, int rows,
             float* out0, float* out1) {
  static constexpr TileConfig kConfig;
  constexpr int kLine = 64;
  const int64_t row_bytes = columns * 2;
  _tile_loadconfig(&kConfig);
  _tile_zero(0);
  _tile_zero(1);
  if (rows == kTileHeight) {
    for (int64_t c = 0; c < columns; c += kQuantColumns) {
      _tile_loadd(4, x + c, row_bytes);
      _tile_loadd(6, pairs0 + c * kPanelRows, kLine);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, pairs1 + c * kPanelRows, kLine);
      _tile_dpbf16ps(1, 4, 7);
    }
  } else {
    const uint16_t* below = x + kTileHeight * columns;
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t c = 0; c < columns; c += kQuantColumns) {
      _tile_loadd(4, x + c, row_bytes);
      _tile_loadd(6, pairs0 + c * kPanelRows, kLine);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(7, pairs1 + c * kPanelRows, kLine);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, below + c, row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(2, out0 + kTileHeight * kPanelRows, kLine);
    _tile_stored(3, out1 + kTileHeight * kPanelRows, kLine);
  }
  _tile_stored(0, out0, kLine);
  _tile_stored(1, out1, kLine);
  _tile_release();
}

constexpr TileKernels kTable{
    round_row,    product,      unpack<Q4_0>,   unpack<Q4_1>,  unpack<Q5_0>,
    unpack<Q5_1>, unpack<Q8_0>, unpack<IQ4_NL>, unpack<MXFP4>, unpack<Q2_K>,
    unpack<Q3_K>, unpack<Q4_K>, unpack<Q5_K>,   unpack<Q6_K>,  unpack<IQ4_XS>,
};

}  // namespace

extern const TileKernels kTilesAmx;
const TileKernels kTilesAmx = kTable;

}  // namespace sluice::backend::cpu
