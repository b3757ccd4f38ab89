// The weight-multiplying kernels of the tier avx2 on processors with AVX-VNNI.
#include "backend/cpu/simd/panel_avxvnni.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/panel_table.h"

}  // namespace

extern const Product kLowAvxVnni[], kLargeAvxVnni[], kGridAvxVnni[];
extern const MatmulKernels kMatmulAvxVnni;
const MatmulKernels kMatmulAvxVnni{quantize,    silu_mul,      L::kManyFrom, kSmallProducts,
                                   kLowAvxVnni, kLargeAvxVnni, kGridAvxVnni};

}  // namespace sluice::backend::cpu
