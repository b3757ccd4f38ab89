// The bodies of products by the vectors of the tier avx512. For files of this tier alone: all that it defines
// is their own.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "backend/cpu/simd/layout.h"
#include "backend/cpu/simd/matmul.h"
#include "quant/iq_grids.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/panel_body.h"

}  // namespace
}  // namespace sluice::backend::cpu
