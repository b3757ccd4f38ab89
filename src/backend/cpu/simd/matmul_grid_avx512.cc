// Products of blocks whose codes name points of a grid by the tier avx512: beside matmul_avx512.cc, because
// all in one file compile for minutes.
#include "backend/cpu/simd/panel_avx512.h"

namespace sluice::backend::cpu {

extern const Product kGridAvx512[];
const Product kGridAvx512[] = {SLUICE_CPU_GRID_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace sluice::backend::cpu
