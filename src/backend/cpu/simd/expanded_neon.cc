// Attention over expanded keys and values on NEON.
#include <arm_neon.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/expanded.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_neon.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/groups.h"
// And each of these needs those before it.
#include "backend/cpu/simd/expanded_f32.h"

#include "backend/cpu/simd/expanded_attend_f32.h"

void nothing() {}

}  // namespace

extern const ExpandedKernels<float> kExpandedNeon;
const ExpandedKernels<float> kExpandedNeon{"neon", nothing, nothing, k_panel, v_panel,
                                           query,  expand,  arrange, attend,  from_halves};

}  // namespace sluice::backend::cpu
