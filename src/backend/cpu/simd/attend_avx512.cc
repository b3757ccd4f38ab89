// The attention kernels of the tier avx512: float32.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
// And each of these needs the one before it.
#include "backend/cpu/simd/attend_rows.h"
#include "backend/cpu/simd/attend_softmax.h"
#include "backend/cpu/simd/totals_avx512.h"

constexpr int kGroupF32 = 5;
#include "backend/cpu/simd/attend_f32.h"
// Operand first.
#include "backend/cpu/simd/attend_body.h"

}  // namespace

extern const AttendKernels kAttendAvx512;
const AttendKernels kAttendAvx512{"avx512 f32", 24,          tile_floats, packed_floats,
                                  work_floats,  sums_stride, decode_f16,  decode_q8,
                                  decode_f32,   pack,        attend,      merge_sums};

}  // namespace sluice::backend::cpu
