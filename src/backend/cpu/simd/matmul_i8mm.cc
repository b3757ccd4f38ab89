// The weight-multiplying kernels of the tier neon on processors with I8MM: two activation rows at once.
#include <arm_neon.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "backend/cpu/simd/layout.h"
#include "backend/cpu/simd/matmul.h"
#include "quant/iq_grids.h"

namespace sluice::backend::cpu {
namespace {

#include "backend/cpu/simd/lanes_neon.h"
// Lanes first: the others are written against it.
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/exp.h"

/// What panel_body.h's dot_codes gives, for an even number of rows, which makes it the better overload there.
template <typename Codec, int R, typename Beside>
requires(R % 2 == 0) inline void dot_codes(const Codec& codec, int group, int half,
                                           const QuantBlock* const* x, I* sums, Beside ask);

#include "backend/cpu/simd/panel_body.h"

/// Integers, so the sums are those of rows taken one by one.
template <typename Codec, int R, typename Beside>
requires(R % 2 == 0) inline void dot_codes(const Codec& codec, int group, int half,
                                           const QuantBlock* const* x, I* sums, Beside ask) {
  constexpr int kSteps = 8 / Codec::kHalves;
  L::Squares squares[R / 2];
  repeat<kSteps / 2>([&](int step) SLUICE_INLINE {
    const int j = half * kSteps + 2 * step;
    ask(j), ask(j + 1);
    I codes[2] = {codec.code(group, j), codec.code(group, j + 1)};
    if constexpr (Codec::kBytes) codes[0] = L::signed_bytes(codes[0]), codes[1] = L::signed_bytes(codes[1]);
    const L::EightColumns columns = L::eight_columns(codes[0], codes[1]);
    repeat<R / 2>([&](int p) SLUICE_INLINE {
      const I of_two = L::eight_of_two(x[2 * p]->codes + 4 * j, x[2 * p + 1]->codes + 4 * j);
      L::multiply_squares(squares[p], columns, of_two);
    });
  });
  repeat<R / 2>([&](int p) SLUICE_INLINE {
    sums[2 * p] = L::of_first(squares[p]);
    sums[2 * p + 1] = L::of_second(squares[p]);
  });
  if constexpr (!Codec::kBytes && Codec::kOffset != 0) {
    repeat<R>([&](int r) SLUICE_INLINE { sums[r] = L::plus(sums[r], start_of<Codec>(*x[r], half)); });
  }
}

#include "backend/cpu/simd/panel_table.h"

constexpr Product kLowProducts[] = {SLUICE_CPU_LOW_BLOCKS(SLUICE_BLOCK_PRODUCT)};
constexpr Product kLargeProducts[] = {SLUICE_CPU_LARGE_BLOCKS(SLUICE_BLOCK_PRODUCT)};
constexpr Product kGridProducts[] = {SLUICE_CPU_GRID_BLOCKS(SLUICE_BLOCK_PRODUCT)};

}  // namespace

extern const MatmulKernels kMatmulI8mm;
const MatmulKernels kMatmulI8mm{quantize,     silu_mul,       L::kManyFrom, kSmallProducts,
                                kLowProducts, kLargeProducts, kGridProducts};

}  // namespace sluice::backend::cpu
