// The number formats of weights that this backend's kernels read, each once: tables of kernels are made of
// these lists. NAME is quant::Type::NAME and its codec's (codecs.h).
#pragma once

#include <array>
#include <cstdint>

#include "quant/types.h"

#define SLUICE_CPU_FLOATS(X) X(F32) X(F16) X(BF16)
#define SLUICE_CPU_BLOCKS(X) \
  X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS)

namespace sluice::backend::cpu {

/// Of a type: its place in tables by format; -1: there are no kernels for it.
constexpr int format_of(quant::Type type) {
  int next = 0;
#define SLUICE_PLACE(NAME)                    \
  if (type == quant::Type::NAME) return next; \
  ++next;
  SLUICE_CPU_FLOATS(SLUICE_PLACE)
  SLUICE_CPU_BLOCKS(SLUICE_PLACE)
#undef SLUICE_PLACE
  return -1;
}

#define SLUICE_ONE(NAME) +1
inline constexpr int kFloatFormats = 0 SLUICE_CPU_FLOATS(SLUICE_ONE);
inline constexpr int kFormats = kFloatFormats SLUICE_CPU_BLOCKS(SLUICE_ONE);
#undef SLUICE_ONE

/// One of each format's, floats first.
template <typename T>
using ByFormat = std::array<T, kFormats>;

}  // namespace sluice::backend::cpu
