// Panels to bf16.
#if defined(__GNUC__) && !defined(__clang__)
// GCC 12 takes the undefined operands of its own intrinsics for mistakes (GCC bug 105593).
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "backend/cpu/simd/layout.h"
#include "backend/cpu/simd/unpack.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_avx512.h"
// Lanes first: the codecs are written against it.
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/unpack_body.h"

template <typename Codec>
void unpack(const uint8_t* panel, int64_t columns, uint16_t* out, Prefetch prefetch) {
  constexpr int kBlockColumns = Codec::kGroups * kQuantColumns;
  for (int64_t c = 0; c < columns; c += kBlockColumns, panel += Codec::kPackedBytes) {
    ask_ahead<Codec>(panel, prefetch);
    const Codec codec(panel, 0);
    for (int g = 0; g < Codec::kGroups; ++g, out += kQuantColumns * kPanelRows)
      unpack_group(codec, g, out, [](auto) {});
  }
}

constexpr UnpackKernels kTable{
    unpack<Q4_0>, unpack<Q4_1>, unpack<Q5_0>, unpack<Q5_1>, unpack<Q8_0>, unpack<IQ4_NL>, unpack<MXFP4>,
    unpack<Q2_K>, unpack<Q3_K>, unpack<Q4_K>, unpack<Q5_K>, unpack<Q6_K>, unpack<IQ4_XS>,
};

}  // namespace

extern const UnpackKernels kUnpackAvx512Bf16;
const UnpackKernels kUnpackAvx512Bf16 = kTable;

}  // namespace sluice::backend::cpu
