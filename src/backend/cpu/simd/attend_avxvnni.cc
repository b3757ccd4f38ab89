// The attention kernels of the tier avx2 on processors with AVX-VNNI: products of pairs in 16 bits and their
// sums in 32 by one instruction.
#include <immintrin.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx2.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
// And each of these needs those before it.
#include "backend/cpu/simd/attend_rows.h"
#include "backend/cpu/simd/attend_softmax.h"

#include "backend/cpu/simd/int16_avxvnni.h"
// Rows and Int16 first.
#include "backend/cpu/simd/attend_int16.h"
// Operand first.
#include "backend/cpu/simd/attend_body.h"

}  // namespace

extern const AttendKernels kAttendAvxVnni;
const AttendKernels kAttendAvxVnni{"avx2 int16 VNNI", 11,          tile_floats, packed_floats,
                                   work_floats,       sums_stride, decode_f16,  decode_q8,
                                   decode_f32,        pack,        attend,      merge_sums};

}  // namespace sluice::backend::cpu
