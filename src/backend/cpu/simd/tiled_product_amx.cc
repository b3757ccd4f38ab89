// Products on AMX tiles of bf16 while weights are unpacked. The tiles' unit works beside the vector units,
// but only within what a core looks ahead, about one step of 32 columns: so products stand between the rows
// that are being unpacked. Few groups of rows are multiplied with weights of two steps before, many with
// those of the stretch before.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "backend/cpu/simd/layout.h"
#include "backend/cpu/simd/tiles.h"
#include "quant/iq_grids.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the codecs are written against it.
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/tile_sums.h"
#include "backend/cpu/simd/unpack_body.h"

constexpr int kLine = 64, kAhead = 2;
/// bf16 numbers of a step's weights, and of its activations a group.
constexpr int kStep = kQuantColumns * kPanelRows;

/// The row of a step before which the product with a group stands: far apart, however many groups there are.
constexpr int kBeforeRow[kFewGroups] = {0, 8, 4, 12, 2, 10};

// Tiles 0 to 5: the sums of the groups; 6: weights; 7: activations. In assembly where a tile's number is a
// template's: g++ makes the intrinsics of text.
constexpr int kWeights = 6, kRows = 7;
static_assert(kFewGroups == kWeights);

template <typename Function>
SLUICE_INLINE inline void each_group(Function f) {
  call_each(f, std::make_integer_sequence<int, kFewGroups>{});
}

/// Weights that vectors wrote, which the intrinsic would not tell the compiler.
SLUICE_INLINE inline void load_weights(const uint16_t* at) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(at), "r"(int64_t{kLine}), "i"(kWeights),
                 "m"(*reinterpret_cast<const uint16_t(*)[kStep]>(at)));
}

/// Activations come out of the second-level cache and are loaded as passing by.
template <int group>
SLUICE_INLINE inline void multiply_group(const uint16_t* x) {
  _tile_stream_loadd(7, x, kLine);
  asm volatile("tdpbf16ps %%tmm%c0, %%tmm%c1, %%tmm%c2" : : "i"(kRows), "i"(kWeights), "i"(group));
}

template <typename Codec>
void few(const uint8_t* panel, int64_t columns, Prefetch prefetch, const uint16_t* x, int groups,
         float* sums) {
  alignas(kLine) uint16_t weights[kAhead + 2][kStep];
  const auto weights_of = [&](int64_t step) { return weights[step % (kAhead + 2)]; };
  const int64_t stride = kGroupRows * columns, steps = columns / kQuantColumns;
  each_group([]<int group>(std::integral_constant<int, group>) {
    asm volatile("tilezero %%tmm%c0" : : "i"(group));
  });
  for (int64_t step = 0; step < steps; panel += Codec::kPackedBytes) {
    ask_ahead<Codec>(panel, prefetch);
    const Codec codec(panel, 0);
    for (int g = 0; g < Codec::kGroups; ++g, ++step) {
      const int64_t multiplied = step - kAhead;
      const int now = multiplied < 0 ? 0 : groups;
      unpack_group(codec, g, weights_of(step), [&]<int row>(std::integral_constant<int, row>) SLUICE_INLINE {
        if (row == 0 && now > 0) load_weights(weights_of(multiplied));
        each_group([&]<int group>(std::integral_constant<int, group>) SLUICE_INLINE {
          if constexpr (kBeforeRow[group] == row) {
            if (group < now) multiply_group<group>(x + group * stride + multiplied * kStep);
          }
        });
      });
    }
  }
  for (int64_t step = std::max<int64_t>(0, steps - kAhead); step < steps; ++step) {
    load_weights(weights_of(step));
    each_group([&]<int group>(std::integral_constant<int, group>) SLUICE_INLINE {
      if (group < groups) multiply_group<group>(x + group * stride + step * kStep);
    });
  }
  each_group([&]<int group>(std::integral_constant<int, group>) SLUICE_INLINE {
    float* const to = sums + group * 2 * kTileFloats;  // clang captures nothing for an operand of assembly
    if (group < groups) {
      asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(group), "r"(to), "r"(int64_t{kLine}) : "memory");
    }
  });
}

/// Tiles as TileKernels::product has them. A step's four products stand before the first four of the rows
/// that are unpacked meanwhile, and so on. Of types whose blocks are one group: those of several gain nothing
/// (docs/performance.md).
template <typename Codec>
void beside(const uint16_t* const* panels, const uint16_t* x0, const uint16_t* x1, bool more, float* sums,
            const uint8_t* packed, Prefetch prefetch, uint16_t* out) {
  constexpr int kRowsAStep = 4;
  static_assert(kPanelRows / kRowsAStep * kBesideGroups * kQuantColumns == kTiledColumns);
  const uint16_t *one = panels[0], *other = panels[1];
  load_sums<true>(sums, more);
  const float* next = sums + 4 * kTileFloats;
  int64_t at = 0;
  for (int block = 0; block < kBesideGroups; ++block, packed += Codec::kPackedBytes, out += kStep) {
    ask_ahead<Codec>(packed, prefetch);
    unpack_group(Codec(packed, 0), 0, out, [&]<int row>(std::integral_constant<int, row>) SLUICE_INLINE {
      if constexpr (row % kRowsAStep == 0) {
        _tile_stream_loadd(6, x0 + at, kLine);
        _tile_loadd(4, one + at, kLine);
        _tile_dpbf16ps(0, 4, 6);
      } else if constexpr (row % kRowsAStep == 1) {
        _tile_stream_loadd(7, x1 + at, kLine);
        _tile_dpbf16ps(2, 4, 7);
      } else if constexpr (row % kRowsAStep == 2) {
        _tile_loadd(5, other + at, kLine);
        _tile_dpbf16ps(1, 5, 6);
      } else {
        next = ask_for_sums(next);
        _tile_dpbf16ps(3, 5, 7);
        at += kStep;
      }
    });
  }
  store_sums<true>(sums);
}

template <typename Codec>
constexpr TiledProduct product() {
  if constexpr (Codec::kGroups == 1) return {few<Codec>, beside<Codec>};
  return {few<Codec>, nullptr};
}

#define SLUICE_FLOAT(NAME) TiledProduct{},
#define SLUICE_BLOCK(NAME) product<NAME>(),
constexpr TiledProducts kTable{SLUICE_CPU_FLOATS(SLUICE_FLOAT) SLUICE_CPU_BLOCKS(SLUICE_BLOCK)};
#undef SLUICE_FLOAT
#undef SLUICE_BLOCK

}  // namespace

extern const TiledProducts kTiledProductsAmx;
const TiledProducts kTiledProductsAmx = kTable;

}  // namespace sluice::backend::cpu
