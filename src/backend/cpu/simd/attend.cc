#include "backend/cpu/simd/attend.h"

#include "backend/cpu/isa.h"

namespace sluice::backend::cpu {

extern const AttendKernels kAttendGeneric;

#if defined(__x86_64__)

extern const AttendKernels kAttendAvx2, kAttendAvx512, kAttendAvx512Bf16, kAttendAmx;

const AttendKernels& attend_kernels(Isa isa) {
  // Zen 4 and Sapphire Rapids multiply pairs of bfloat16, Ice Lake does not.
  static const bool has_bf16 = __builtin_cpu_supports("avx512bf16") != 0;
  if (isa == Isa::Amx) return kAttendAmx;
  if (isa == Isa::Avx512) return has_bf16 ? kAttendAvx512Bf16 : kAttendAvx512;
  return isa == Isa::Avx2 ? kAttendAvx2 : kAttendGeneric;
}

#elif defined(__aarch64__)

extern const AttendKernels kAttendNeon;

const AttendKernels& attend_kernels(Isa isa) { return isa == Isa::Neon ? kAttendNeon : kAttendGeneric; }

#else

const AttendKernels& attend_kernels(Isa) { return kAttendGeneric; }

#endif

}  // namespace sluice::backend::cpu
