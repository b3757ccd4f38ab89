// The attention kernels of the tier neon: float32.
#include <arm_neon.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_neon.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
// And each of these needs the one before it.
#include "backend/cpu/simd/attend_rows.h"
#include "backend/cpu/simd/attend_softmax.h"

/// The total of each of four vectors.
inline void store_totals(const Lanes::F* v, float* out) {
  vst1q_f32(out, vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3])));
}

constexpr int kGroupF32 = 4;
#include "backend/cpu/simd/attend_f32.h"
// Operand first.
#include "backend/cpu/simd/attend_body.h"

}  // namespace

extern const AttendKernels kAttendNeon;
const AttendKernels kAttendNeon{"neon f32", 24,        tile_floats, packed_floats, work_floats, sums_stride,
                                decode_f16, decode_q8, decode_f32,  pack,          attend,      merge_sums};

}  // namespace sluice::backend::cpu
