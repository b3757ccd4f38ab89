// The attention kernels of the tier avx2: float32.
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "backend/cpu/simd/attend.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx2.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/exp.h"
// And each of these needs the one before it.
#include "backend/cpu/simd/attend_softmax.h"

/// The total of each of four vectors.
inline void store_totals(const Lanes::F* v, float* out) {
  const __m256 pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(pairs), _mm256_extractf128_ps(pairs, 1)));
}

constexpr int kGroupF32 = 2;
#include "backend/cpu/simd/attend_f32.h"
// Operand first.
#include "backend/cpu/simd/attend_body.h"

}  // namespace

extern const AttendKernels kAttendAvx2;
const AttendKernels kAttendAvx2{"avx2 f32", false,     tile_floats, packed_floats, work_floats, sums_stride,
                                decode_f16, decode_q8, decode_f32,  pack,          attend,      merge_sums};

}  // namespace sluice::backend::cpu
