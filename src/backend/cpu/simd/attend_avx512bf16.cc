// The attention kernels of the tier avx512bf16: products of bfloat16 pairs, sums in float32.
#include <immintrin.h>

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
#include "backend/cpu/simd/attend_softmax.h"

#include "backend/cpu/simd/attend_bf16.h"

struct Operand {
  using Number = uint16_t;
  using Vector = __m512i;
  static constexpr int kGroup = 5;
  static constexpr int kNumbers = 32;
  static constexpr int kRows = 2;                           // a pair
  static constexpr int64_t kWeightStride = 2 * kChunkRows;  // they lie where the scores lay

  static int64_t stride(AttendShape shape) { return key_stride(shape) / 2; }
  static int64_t numbers(AttendShape shape) { return key_stride(shape); }
  static Vector load(const uint16_t* at) { return _mm512_loadu_si512(at); }
  static Vector repeat(const uint16_t* at) {
    int32_t pair;
    __builtin_memcpy(&pair, at, sizeof pair);
    return _mm512_set1_epi32(pair);
  }
  static Lanes::F multiply_add(Vector a, Vector b, Lanes::F sum) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
  }
  static const uint16_t* keys(const float* tile) { return reinterpret_cast<const uint16_t*>(tile); }
  static const uint16_t* values(const float* tile, AttendShape shape) { return values_of(tile, shape); }
  static int64_t value_stride(AttendShape shape) { return pair_stride(shape); }
  static void make_weights(float* weights, int64_t end, float* total) {
    weights_to_bf16(weights, end, reinterpret_cast<uint16_t*>(weights), total);
  }
};

void pack(const float* const* q, int64_t queries, AttendShape shape, float* packed) {
  auto* out = reinterpret_cast<uint16_t*>(packed);
  for (int64_t i = 0; i < queries; ++i) {
    for (int64_t c = 0; c < key_stride(shape); c += 32, out += 32) {
      _mm512_storeu_si512(out,
                          to_bf16(columns_of(q[i], c, shape.width), columns_of(q[i], c + 16, shape.width)));
    }
  }
}

#include "backend/cpu/simd/totals_avx512.h"
// Operand and totals first.
#include "backend/cpu/simd/attend_body.h"

}  // namespace

extern const AttendKernels kAttendAvx512Bf16;
const AttendKernels kAttendAvx512Bf16{"avx512 bf16", true,        tile_floats, packed_floats,
                                      work_floats,   sums_stride, decode_f16,  decode_q8,
                                      decode_f32,    pack,        attend,      merge_sums};

}  // namespace sluice::backend::cpu
