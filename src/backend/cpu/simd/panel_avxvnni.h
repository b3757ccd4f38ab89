// The bodies of products by the vectors of the tier avx2 on processors with AVX-VNNI: four bytes times four,
// added up in 32 bits, are one instruction and not two to four. For files of this tier alone: all that it
// defines is their own.
#pragma once

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

namespace half {
#include "backend/cpu/simd/lanes_avx2.h"
}

/// What the functions do: lanes_avx512.h.
struct HalfOfLanes : half::Lanes {
  static constexpr bool kAddsPairs = false, kSumsAreFloats = true;
  static I dot(I sum, I codes, I x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
  static I start_bytes(int32_t start) { return all(start); }
};

// Lanes first: the others are written against it.
#include "backend/cpu/simd/lanes_twice.h"
using Lanes = Twice<HalfOfLanes>;
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/panel_body.h"

}  // namespace
}  // namespace sluice::backend::cpu
