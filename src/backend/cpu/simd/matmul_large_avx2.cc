// Products of blocks of 256 columns by the tier avx2: beside matmul_avx2.cc, because all in one
// file compile for minutes.
#include "backend/cpu/simd/panel_avx2.h"

namespace sluice::backend::cpu {

extern const Product kLargeAvx2[];
const Product kLargeAvx2[] = {SLUICE_CPU_LARGE_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace sluice::backend::cpu
