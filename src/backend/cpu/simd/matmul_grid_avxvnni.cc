// Products of blocks whose codes name points of a grid by the tier avx2 on processors with AVX-VNNI: beside
// matmul_avxvnni.cc, because all in one file compile for minutes.
#include "backend/cpu/simd/panel_avxvnni.h"

namespace sluice::backend::cpu {

extern const Product kGridAvxVnni[];
const Product kGridAvxVnni[] = {SLUICE_CPU_GRID_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace sluice::backend::cpu
