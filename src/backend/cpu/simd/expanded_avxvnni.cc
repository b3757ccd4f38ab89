// Attention over expanded keys and values on AVX2 with AVX-VNNI.
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
// And each of these needs those before it.
#include "backend/cpu/simd/expanded_f32.h"
#include "backend/cpu/simd/int16_avxvnni.h"

#include "backend/cpu/simd/expanded_int16.h"

void nothing() {}

}  // namespace

extern const ExpandedKernels<float> kExpandedAvxVnni;
const ExpandedKernels<float> kExpandedAvxVnni{"avx2 int16 VNNI", nothing,     nothing,      k_panel_int16,
                                              v_panel_int16,     query_int16, expand_int16, arrange_int16,
                                              attend_int16,      from_halves, prepare_int16};

}  // namespace sluice::backend::cpu
