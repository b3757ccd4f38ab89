#include "backend/cpu/simd/matmul.h"

#include "backend/cpu/isa.h"

namespace sluice::backend::cpu {

extern const MatmulKernels kMatmulGeneric, kMatmulAvx2, kMatmulAvx512;

const MatmulKernels& matmul_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::Avx512) return kMatmulAvx512;
  if (isa == Isa::Avx2) return kMatmulAvx2;
#endif
  return kMatmulGeneric;
}

}  // namespace sluice::backend::cpu
