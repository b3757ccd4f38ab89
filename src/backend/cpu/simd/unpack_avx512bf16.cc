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
#include "quant/iq_grids.h"

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

#define SLUICE_FLOAT(NAME) nullptr,
#define SLUICE_BLOCK(NAME) unpack<NAME>,
constexpr UnpackKernels kTable{SLUICE_CPU_FLOATS(SLUICE_FLOAT) SLUICE_CPU_BLOCKS(SLUICE_BLOCK)};
#undef SLUICE_FLOAT
#undef SLUICE_BLOCK

}  // namespace

extern const UnpackKernels kUnpackAvx512Bf16;
const UnpackKernels kUnpackAvx512Bf16 = kTable;

}  // namespace sluice::backend::cpu
