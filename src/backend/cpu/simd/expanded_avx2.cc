// Attention over expanded keys and values on AVX2.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/expanded.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx2.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/groups.h"
// And this one needs those before it.
#include "backend/cpu/simd/expanded_f32.h"

void nothing() {}

}  // namespace

extern const ExpandedKernels<float> kExpandedAvx2;
const ExpandedKernels<float> kExpandedAvx2{"avx2", nothing, nothing, k_panel,    v_panel,
                                           query,  expand,  attend,  from_halves};

}  // namespace sluice::backend::cpu
