#include "backend/cpu/simd/grouped.h"

#include "backend/cpu/isa.h"

namespace sluice::backend::cpu {

extern const GroupedKernels kGroupedGeneric;

#if defined(__x86_64__)

extern const GroupedKernels kGroupedAvx2, kGroupedAvx512;

const GroupedKernels& grouped_kernels(Isa isa) {
  if (isa >= Isa::Avx512) return kGroupedAvx512;
  return isa == Isa::Avx2 ? kGroupedAvx2 : kGroupedGeneric;
}

#elif defined(__aarch64__)

extern const GroupedKernels kGroupedNeon;

const GroupedKernels& grouped_kernels(Isa isa) { return isa == Isa::Neon ? kGroupedNeon : kGroupedGeneric; }

#else

const GroupedKernels& grouped_kernels(Isa) { return kGroupedGeneric; }

#endif

}  // namespace sluice::backend::cpu
