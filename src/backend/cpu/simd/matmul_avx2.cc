// The weight-multiplying kernels of the tier avx2.
#include <immintrin.h>

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

namespace half {
#include "backend/cpu/simd/lanes_avx2.h"
}
// Lanes first: the others are written against it.
#include "backend/cpu/simd/lanes_twice.h"
using Lanes = Twice<half::Lanes>;
#include "backend/cpu/simd/codecs.h"
#include "backend/cpu/simd/exp.h"
#include "backend/cpu/simd/panel_body.h"

}  // namespace

extern const MatmulKernels kMatmulAvx2;
const MatmulKernels kMatmulAvx2 = kTable;

}  // namespace sluice::backend::cpu
