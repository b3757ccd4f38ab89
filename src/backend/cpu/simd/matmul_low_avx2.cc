// Products of blocks of 256 columns with two or three bits a code by the tier avx2: beside matmul_avx2.cc,
// because all in one file compile for minutes.
#include "backend/cpu/simd/panel_avx2.h"

namespace sluice::backend::cpu {

extern const Product kLowAvx2[];
const Product kLowAvx2[] = {SLUICE_CPU_LOW_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace sluice::backend::cpu
