// The bodies of products by the vectors of the tier avx2. For files of this tier alone: all that it defines
// is their own.
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
// Lanes first: the others are written against it.
#include "backend/cpu/simd/lanes_twice.h"
using Lanes = Twice<half::Lanes>;
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/panel_body.h"

}  // namespace
}  // namespace sluice::backend::cpu
