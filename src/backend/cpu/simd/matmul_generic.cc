// The weight-multiplying kernels of the tier generic.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "backend/cpu/simd/layout.h"
#include "backend/cpu/simd/matmul.h"
#include "base/half.h"
#include "quant/iq_grids.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_generic.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/panel_body.h"
#include "backend/cpu/simd/panel_table.h"

constexpr Product kLowProducts[] = {SLUICE_CPU_LOW_BLOCKS(SLUICE_BLOCK_PRODUCT)};
constexpr Product kLargeProducts[] = {SLUICE_CPU_LARGE_BLOCKS(SLUICE_BLOCK_PRODUCT)};
constexpr Product kGridProducts[] = {SLUICE_CPU_GRID_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace

extern const MatmulKernels kMatmulGeneric;
const MatmulKernels kMatmulGeneric{quantize,     silu_mul,       L::kManyFrom, kSmallProducts,
                                   kLowProducts, kLargeProducts, kGridProducts};

}  // namespace sluice::backend::cpu
