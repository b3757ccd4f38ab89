// Attention over expanded keys and values on matrix tiles.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/expanded.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/expanded_softmax.h"
#include "backend/cpu/simd/groups.h"
#include "backend/cpu/simd/pairs_avx512.h"
#include "backend/cpu/simd/tile_config.h"
#include "backend/cpu/simd/turn_avx512.h"

enum class Left : uint8_t { Stays, PassesBy };  // in the first-level cache

/// 16 or 32 rows times as many columns: sums in tiles 0 to 3, two of each side in 4 to 7.
template <Left left, bool adds, bool tall, bool wide, typename Beside>
void multiply_block(const uint16_t* a, int64_t a_stride, const uint16_t* b, int64_t panel, int64_t inner,
                    float* c, int64_t c_stride, Beside beside) {
  constexpr int64_t kTile = 16, kStep = 32, kLine = 64;
  const int64_t a_bytes = a_stride * static_cast<int64_t>(sizeof(uint16_t));
  const int64_t c_bytes = c_stride * static_cast<int64_t>(sizeof(float));
  if (adds) {
    _tile_loadd(0, c, c_bytes);
    if (wide) _tile_loadd(1, c + kTile, c_bytes);
    if (tall) _tile_loadd(2, c + kTile * c_stride, c_bytes);
    if (tall && wide) _tile_loadd(3, c + kTile * c_stride + kTile, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t i = 0; i < inner; i += kStep, a += kStep, b += kStep * kTile) {
    if (left == Left::PassesBy) {
      _tile_stream_loadd(4, a, a_bytes);
    } else {
      _tile_loadd(4, a, a_bytes);
    }
    _tile_loadd(6, b, kLine);
    _tile_dpbf16ps(0, 4, 6);
    beside();
    if (wide) {
      _tile_loadd(7, b + panel, kLine);
      _tile_dpbf16ps(1, 4, 7);
      beside();
    }
    if (tall) {
      if (left == Left::PassesBy) {
        _tile_stream_loadd(5, a + kTile * a_stride, a_bytes);
      } else {
        _tile_loadd(5, a + kTile * a_stride, a_bytes);
      }
      _tile_dpbf16ps(2, 5, 6);
      beside();
      if (wide) {
        _tile_dpbf16ps(3, 5, 7);
        beside();
      }
    }
  }
  _tile_stored(0, c, c_bytes);
  if (wide) _tile_stored(1, c + kTile, c_bytes);
  if (tall) {
    _tile_stored(2, c + kTile * c_stride, c_bytes);
    if (wide) _tile_stored(3, c + kTile * c_stride + kTile, c_bytes);
  }
}

template <Left left, bool adds>
void multiply_as(const uint16_t* a, int64_t a_stride, int64_t rows, const uint16_t* b, int64_t panel,
                 int64_t inner, int64_t columns, float* c, int64_t c_stride, Softmax* softmax) {
  const auto all = [&](auto beside) {
    using Beside = decltype(beside);
    for (int64_t n = 0; n < columns; n += 32) {
      for (int64_t m = 0; m < rows; m += 32) {
        const bool tall = m + 16 < rows, wide = n + 16 < columns;
        const auto block = tall ? (wide ? multiply_block<left, adds, true, true, Beside>
                                        : multiply_block<left, adds, true, false, Beside>)
                                : (wide ? multiply_block<left, adds, false, true, Beside>
                                        : multiply_block<left, adds, false, false, Beside>);
        block(a + m * a_stride, a_stride, b + n / 16 * panel, panel, inner, c + m * c_stride + n, c_stride,
              beside);
      }
    }
  };
  softmax == nullptr ? all([] {}) : all([softmax] { softmax->next(); });
}
constexpr auto multiply = multiply_as<Left::Stays, false>, multiply_adding = multiply_as<Left::Stays, true>,
               multiply_passing = multiply_as<Left::PassesBy, false>;

#include "backend/cpu/simd/expanded_body.h"

void end() { _tile_release(); }

}  // namespace

extern const ExpandedKernels<uint16_t> kExpandedAmx;
const ExpandedKernels<uint16_t> kExpandedAmx{"amx bf16", configure_tiles, end,    k_panel, v_panel, query,
                                             expand,     arrange,         attend, nullptr, nullptr, kLog2E};

}  // namespace sluice::backend::cpu
