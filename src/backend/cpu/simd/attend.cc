#include "backend/cpu/simd/attend.h"

#include "backend/cpu/isa.h"

namespace sluice::backend::cpu {

extern const AttendKernels kAttendGeneric;

#if defined(__x86_64__)

extern const AttendKernels kAttendAvx2, kAttendAvx512, kAttendAvx512Fp16, kAttendAvx512Bf16, kAttendAmx;

const AttendKernels& attend_kernels(Isa isa) {
  // Zen 4 and Zen 5 multiply pairs of bfloat16 as fast as those of 16-bit numbers, Intel's processors at a
  // quarter of the pace, if at all.
  static const bool quick_bf16 = amd_family() != 0 && __builtin_cpu_supports("avx512bf16") != 0;
  static const AttendKernels& wide = quick_bf16          ? kAttendAvx512Bf16
                                     : has_avx512_fp16() ? kAttendAvx512Fp16
                                                         : kAttendAvx512;
  if (isa == Isa::Amx) return kAttendAmx;
  if (isa == Isa::Avx512) return wide;
  return isa == Isa::Avx2 ? kAttendAvx2 : kAttendGeneric;
}

#elif defined(__aarch64__)

extern const AttendKernels kAttendNeon;

const AttendKernels& attend_kernels(Isa isa) { return isa == Isa::Neon ? kAttendNeon : kAttendGeneric; }

#else

const AttendKernels& attend_kernels(Isa) { return kAttendGeneric; }

#endif

}  // namespace sluice::backend::cpu
