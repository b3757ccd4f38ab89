// Products of blocks of 256 columns with two or three bits a code by the tier avx2 on processors with AVX-
// VNNI: beside matmul_avxvnni.cc, because all in one file compile for minutes.
#include "backend/cpu/simd/panel_avxvnni.h"

namespace sluice::backend::cpu {

extern const Product kLowAvxVnni[];
const Product kLowAvxVnni[] = {SLUICE_CPU_LOW_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace sluice::backend::cpu
