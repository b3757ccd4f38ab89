// Products of blocks whose codes name points of a grid by the tier avx2: beside matmul_avx2.cc, because all
// in one file compile for minutes.
#include "backend/cpu/simd/panel_avx2.h"

namespace sluice::backend::cpu {

extern const Product kGridAvx2[];
const Product kGridAvx2[] = {SLUICE_CPU_GRID_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace sluice::backend::cpu
