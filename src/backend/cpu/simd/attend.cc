#include "backend/cpu/simd/attend.h"

#include "backend/cpu/isa.h"
#include "backend/cpu/simd/expanded.h"

namespace sluice::backend::cpu {

extern const AttendKernels kAttendGeneric;

#if defined(__x86_64__)

extern const ExpandedKernels<uint16_t> kExpandedAvx512Bf16, kExpandedAmx;
extern const ExpandedKernels<float> kExpandedAvx2, kExpandedAvxVnni;
extern const AttendKernels kAttendAvx2, kAttendAvxVnni, kAttendAvx512, kAttendAvx512Fp16, kAttendAvx512Bf16,
    kAttendAmx;

/// Zen 4 and Zen 5 multiply pairs of bfloat16 as fast as those of 16-bit numbers, Intel's processors at a
/// quarter of the pace, if at all.
static bool quick_bf16() {
  static const bool quick = amd_family() != 0 && has_avx512_bf16();
  return quick;
}

template <>
const ExpandedKernels<uint16_t>* expanded_kernels<uint16_t>(Isa isa) {
  if (isa == Isa::Amx) return &kExpandedAmx;
  return isa == Isa::Avx512 && quick_bf16() ? &kExpandedAvx512Bf16 : nullptr;
}
static const ExpandedKernels<float>* narrow_kernels() {
  static const ExpandedKernels<float>& narrow = has_avx_vnni() ? kExpandedAvxVnni : kExpandedAvx2;
  return &narrow;
}
template <>
const ExpandedKernels<float>* expanded_kernels<float>(Isa isa) {
  return isa == Isa::Avx2 ? narrow_kernels() : nullptr;
}
template <>
const ExpandedKernels<float>* arranging_kernels<float>(Isa isa) {
  return isa == Isa::Avx512 && !quick_bf16() ? narrow_kernels() : expanded_kernels<float>(isa);
}

const AttendKernels& attend_kernels(Isa isa) {
  static const AttendKernels& wide = quick_bf16()        ? kAttendAvx512Bf16
                                     : has_avx512_fp16() ? kAttendAvx512Fp16
                                                         : kAttendAvx512;
  static const AttendKernels& narrow = has_avx_vnni() ? kAttendAvxVnni : kAttendAvx2;
  if (isa == Isa::Amx) return kAttendAmx;
  if (isa == Isa::Avx512) return wide;
  return isa == Isa::Avx2 ? narrow : kAttendGeneric;
}

#elif defined(__aarch64__)

extern const ExpandedKernels<float> kExpandedNeon;
extern const AttendKernels kAttendNeon;

template <>
const ExpandedKernels<float>* expanded_kernels<float>(Isa isa) {
  return isa == Isa::Neon ? &kExpandedNeon : nullptr;
}

template <>
const ExpandedKernels<float>* arranging_kernels<float>(Isa isa) {
  return expanded_kernels<float>(isa);
}

const AttendKernels& attend_kernels(Isa isa) { return isa == Isa::Neon ? kAttendNeon : kAttendGeneric; }

#else

template <>
const ExpandedKernels<float>* expanded_kernels<float>(Isa) {
  return nullptr;
}

template <>
const ExpandedKernels<float>* arranging_kernels<float>(Isa) {
  return nullptr;
}

const AttendKernels& attend_kernels(Isa) { return kAttendGeneric; }

#endif

#ifndef __x86_64__
template <>
const ExpandedKernels<uint16_t>* expanded_kernels<uint16_t>(Isa) {
  return nullptr;
}
#endif
template <>
const ExpandedKernels<uint16_t>* arranging_kernels<uint16_t>(Isa isa) {
  return expanded_kernels<uint16_t>(isa);
}

}  // namespace sluice::backend::cpu
