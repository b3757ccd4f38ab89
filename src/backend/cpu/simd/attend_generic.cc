// The attention kernels of the tier generic: float32.

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/attend.h"
#include "base/half.h"
namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_generic.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
// And each of these needs the one before it.
#include "backend/cpu/simd/attend_rows.h"
#include "backend/cpu/simd/attend_softmax.h"

/// The total of each of four vectors.
inline void store_totals(const Lanes::F* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = Lanes::total(v[i]);
}

constexpr int kGroupF32 = 2;
#include "backend/cpu/simd/attend_f32.h"
// Operand first.
#include "backend/cpu/simd/attend_body.h"

}  // namespace

extern const AttendKernels kAttendGeneric;
const AttendKernels kAttendGeneric{"generic f32", 24,          tile_floats, packed_floats,
                                   work_floats,   sums_stride, decode_f16,  decode_q8,
                                   decode_f32,    pack,        attend,      merge_sums};

}  // namespace sluice::backend::cpu
