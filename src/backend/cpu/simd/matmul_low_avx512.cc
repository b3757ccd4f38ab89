// Products of blocks of 256 columns with two or three bits a code by the tier avx512: beside
// matmul_avx512.cc, because all in one file compile for minutes.
#include "backend/cpu/simd/panel_avx512.h"

namespace sluice::backend::cpu {

extern const Product kLowAvx512[];
const Product kLowAvx512[] = {SLUICE_CPU_LOW_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace sluice::backend::cpu
