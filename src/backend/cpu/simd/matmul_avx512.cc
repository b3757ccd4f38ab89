// The weight-multiplying kernels of the tier avx512.
#include "backend/cpu/simd/panel_avx512.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/panel_table.h"

}  // namespace

extern const Product kLowAvx512[], kLargeAvx512[], kGridAvx512[];
extern const MatmulKernels kMatmulAvx512;
const MatmulKernels kMatmulAvx512{quantize,   silu_mul,     L::kManyFrom, kSmallProducts,
                                  kLowAvx512, kLargeAvx512, kGridAvx512};

}  // namespace sluice::backend::cpu
