// The number formats of weights that this backend's kernels read, each once: tables of kernels are made of
// these lists. NAME is quant::Type::NAME and its codec's (codecs.h).
#pragma once

#include <array>
#include <iterator>

#include "quant/types.h"

#define SLUICE_CPU_FLOATS(X) X(F32) X(F16) X(BF16)
// clang-format off
/// Blocks of 32 columns, of 256 with two or three bits a code and with more, and those whose codes name points of a
/// grid (and NVFP4's).
#define SLUICE_CPU_SMALL_BLOCKS(X) X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4)
#define SLUICE_CPU_LOW_BLOCKS(X) X(Q2_K) X(Q3_K)
#define SLUICE_CPU_LARGE_BLOCKS(X) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS)
#define SLUICE_CPU_GRID_BLOCKS(X) \
  X(IQ2_XXS) X(IQ2_XS) X(IQ2_S) X(IQ3_XXS) X(IQ3_S) X(IQ1_S) X(IQ1_M) X(NVFP4)
// clang-format on
#define SLUICE_CPU_BLOCKS(X) \
  SLUICE_CPU_SMALL_BLOCKS(X) SLUICE_CPU_LOW_BLOCKS(X) SLUICE_CPU_LARGE_BLOCKS(X) SLUICE_CPU_GRID_BLOCKS(X)

namespace sluice::backend::cpu {

#define SLUICE_TYPE(NAME) quant::Type::NAME,
inline constexpr quant::Type kFloatTypes[] = {SLUICE_CPU_FLOATS(SLUICE_TYPE)};
inline constexpr quant::Type kTypes[] = {SLUICE_CPU_FLOATS(SLUICE_TYPE) SLUICE_CPU_BLOCKS(SLUICE_TYPE)};
#undef SLUICE_TYPE
inline constexpr int kFloatFormats = std::size(kFloatTypes), kFormats = std::size(kTypes);

/// Of a type: its place in tables by format; -1: there are no kernels for it.
constexpr int format_of(quant::Type type) {
  for (int i = 0; i < kFormats; ++i) {
    if (kTypes[i] == type) return i;
  }
  return -1;
}

/// The first of the low blocks, of the large ones and of the grids.
inline constexpr int kFirstLow = format_of(quant::Type::Q2_K), kFirstLarge = format_of(quant::Type::Q4_K),
                     kFirstGrid = format_of(quant::Type::IQ2_XXS);

/// One of each format's, floats first.
template <typename T>
using ByFormat = std::array<T, kFormats>;

}  // namespace sluice::backend::cpu
