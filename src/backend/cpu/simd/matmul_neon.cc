// The weight-multiplying kernels of the tier neon: dot products of bytes.
#include <arm_neon.h>

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

#include "backend/cpu/simd/lanes_neon.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/panel_body.h"
#include "backend/cpu/simd/panel_table.h"

constexpr Product kLowProducts[] = {SLUICE_CPU_LOW_BLOCKS(SLUICE_BLOCK_PRODUCT)};
constexpr Product kLargeProducts[] = {SLUICE_CPU_LARGE_BLOCKS(SLUICE_BLOCK_PRODUCT)};
constexpr Product kGridProducts[] = {SLUICE_CPU_GRID_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace

extern const MatmulKernels kMatmulNeon;
const MatmulKernels kMatmulNeon{quantize,     silu_mul,       L::kManyFrom, kSmallProducts,
                                kLowProducts, kLargeProducts, kGridProducts};

}  // namespace sluice::backend::cpu
