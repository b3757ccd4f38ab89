#include "backend/cpu/simd/small.h"

#include "backend/cpu/isa.h"

namespace sluice::backend::cpu {

extern const SmallKernels kSmallGeneric;

#if defined(__x86_64__)

extern const SmallKernels kSmallAvx2, kSmallAvx512;

const SmallKernels& small_kernels(Isa isa) {
  if (isa >= Isa::Avx512) return kSmallAvx512;
  return isa == Isa::Avx2 ? kSmallAvx2 : kSmallGeneric;
}

#elif defined(__aarch64__)

extern const SmallKernels kSmallNeon;

const SmallKernels& small_kernels(Isa isa) { return isa == Isa::Neon ? kSmallNeon : kSmallGeneric; }

#else

const SmallKernels& small_kernels(Isa) { return kSmallGeneric; }

#endif

}  // namespace sluice::backend::cpu
