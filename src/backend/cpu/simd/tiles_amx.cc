// Many rows at once on AMX tiles of bf16. A product of 16 x 16 x 32 is one instruction of 16 cycles (1,024
// FLOP a cycle). Weights are the left factor: they are unpacked row by row (unpack.h). int8 tiles need no
// unpacking, but every 32 columns their sums would have to leave the tiles to be scaled.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstdint>

#include "backend/cpu/simd/tiles.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: this is written against it.
#include "backend/cpu/simd/tile_config.h"
#include "backend/cpu/simd/tile_sums.h"
#include "backend/cpu/simd/turn_avx512.h"

using I = Lanes::I;
using F = Lanes::F;

inline I two_to_bf16(F high, F low) { return reinterpret_cast<I>(_mm512_cvtne2ps_pbh(high, low)); }

void round_group(const float* const* x, int rows, int64_t columns, uint16_t* out) {
  alignas(64) static constexpr uint16_t kEvenThenOdd[32] = {0,  2,  4,  6,  8,  10, 12, 14, 16, 18, 20,
                                                            22, 24, 26, 28, 30, 1,  3,  5,  7,  9,  11,
                                                            13, 15, 17, 19, 21, 23, 25, 27, 29, 31};
  const I order = _mm512_load_si512(kEvenThenOdd);
  for (int64_t c = 0; c < columns; c += kQuantColumns, out += kQuantColumns * kGroupRows) {
    I v[kGroupRows];
    for (int i = 0; i < kGroupRows; ++i) {
      if (i < rows) {
        const I natural = two_to_bf16(Lanes::load_f(x[i] + c + 16), Lanes::load_f(x[i] + c));
        v[i] = _mm512_permutexvar_epi16(order, natural);
      } else {
        v[i] = Lanes::zero();
      }
    }
    turn(v);
    for (int i = 0; i < kGroupRows; ++i) _mm512_storeu_si512(out + i * 32, v[i]);
  }
}

void transpose(const float* in, float* out) {
  I v[16];
  for (int i = 0; i < 16; ++i) v[i] = Lanes::load(in + i * 16);
  turn(v);
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(out + i * 16, v[i]);
}

void write(const float* in, float* const* out, const float* const* addends, int rows) {
  I v[16];
  for (int i = 0; i < 16; ++i) v[i] = Lanes::load(in + i * 16);
  turn(v);
  for (int i = 0; i < 16; ++i) {
    if (i >= rows) break;
    F values = Lanes::as_float(v[i]);
    if (addends != nullptr) values = Lanes::add(Lanes::load_f(addends[i]), values);
    if (reinterpret_cast<uintptr_t>(out[i]) % 64 == 0) {
      _mm512_stream_ps(out[i], values);
    } else {
      _mm512_storeu_ps(out[i], values);
    }
  }
}

void round_sums(const float* in, int half, uint16_t* out) {
  // Sixteen numbers of a column and sixteen of another to pairs.
  alignas(64) static constexpr uint16_t kPairs[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                      21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                      11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const I order = _mm512_load_si512(kPairs);
  // Of 32 columns the even ones come first: four lines of these, and eight lines on four of the odd ones.
  for (int odd = 0; odd < 2; ++odd) {
    for (int line = 0; line < 4; ++line) {
      const float* column = in + (4 * line + odd) * kGroupRows;
      const I one_after_other = two_to_bf16(Lanes::load_f(column + 2 * kGroupRows), Lanes::load_f(column));
      _mm512_storeu_si512(out + (8 * odd + 4 * half + line) * 32,
                          _mm512_permutexvar_epi16(order, one_after_other));
    }
  }
}

void add(const float* in, float* const* out, const float* weights, int rows) {
  I v[16];
  for (int i = 0; i < 16; ++i) v[i] = Lanes::load(in + i * 16);
  turn(v);
  for (int i = 0; i < 16; ++i) {
    if (i >= rows) break;
    _mm512_storeu_ps(out[i],
                     Lanes::fma(Lanes::as_float(v[i]), Lanes::all_f(weights[i]), Lanes::load_f(out[i])));
  }
}

void end() {
  _tile_release();
  _mm_sfence();  // what write() wrote comes before the barrier that tells others of it
}

/// Tiles 0 and 1: the sums of the first group with the two panels; 2 and 3: of the second; 4 and 5: weights;
/// 6 and 7: activations. These come out of the second-level cache and are loaded as passing by, so that the
/// first-level cache keeps weights and sums.
template <bool two>
void multiply_tiles(const uint16_t* const* panels, const uint16_t* x0, const uint16_t* x1, int64_t columns,
                    bool more, float* sums) {
  constexpr int kLine = 64;
  const uint16_t *one = panels[0], *other = panels[1];
  load_sums<two>(sums, more);
  const float* next = sums + 4 * kTileFloats;
  for (int64_t at = 0; at < columns * kPanelRows; at += kQuantColumns * kPanelRows) {
    _tile_stream_loadd(6, x0 + at, kLine);
    _tile_loadd(4, one + at, kLine);
    _tile_dpbf16ps(0, 4, 6);
    if (two) _tile_stream_loadd(7, x1 + at, kLine);
    if (two) _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, other + at, kLine);
    _tile_dpbf16ps(1, 5, 6);
    next = ask_for_sums(next);
    if (two) _tile_dpbf16ps(3, 5, 7);
  }
  store_sums<two>(sums);
}

void product(const uint16_t* const* panels, const uint16_t* x0, const uint16_t* x1, int64_t columns,
             bool more, float* sums) {
  x1 == nullptr ? multiply_tiles<false>(panels, x0, x1, columns, more, sums)
                : multiply_tiles<true>(panels, x0, x1, columns, more, sums);
}

constexpr TileKernels kTable{configure_tiles, end, round_group, product, transpose, write, round_sums, add};

}  // namespace

extern const TileKernels kTilesAmx;
const TileKernels kTilesAmx = kTable;

}  // namespace sluice::backend::cpu
