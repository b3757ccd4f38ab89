// The weight-multiplying kernels of the tier avx2.
#include "backend/cpu/simd/panel_avx2.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/panel_table.h"

}  // namespace

extern const Product kLowAvx2[], kLargeAvx2[], kGridAvx2[];
extern const MatmulKernels kMatmulAvx2;
const MatmulKernels kMatmulAvx2{quantize, silu_mul,   L::kManyFrom, kSmallProducts,
                                kLowAvx2, kLargeAvx2, kGridAvx2};

}  // namespace sluice::backend::cpu
