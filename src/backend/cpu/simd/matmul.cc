#include "backend/cpu/simd/matmul.h"

#include "backend/cpu/isa.h"
#include "backend/cpu/simd/tiles.h"
#include "backend/cpu/simd/unpack.h"

namespace sluice::backend::cpu {

extern const MatmulKernels kMatmulGeneric, kMatmulAvx2, kMatmulAvxVnni, kMatmulAvx512, kMatmulNeon,
    kMatmulI8mm;

const MatmulKernels& matmul_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::Avx512) return kMatmulAvx512;
  static const MatmulKernels& avx2 = has_avx_vnni() ? kMatmulAvxVnni : kMatmulAvx2;
  if (isa == Isa::Avx2) return avx2;
#elif defined(__aarch64__)
  if (isa == Isa::Neon) return has_i8mm() ? kMatmulI8mm : kMatmulNeon;
#endif
  return kMatmulGeneric;
}

extern const TileKernels kTilesAmx;

const TileKernels* tile_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::Amx) return &kTilesAmx;
#endif
  return nullptr;
}

extern const TiledProducts kTiledProductsAmx;

const TiledProducts* tiled_products([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::Amx) return &kTiledProductsAmx;
#endif
  return nullptr;
}

extern const UnpackKernels kUnpackAvx512Bf16;

const UnpackKernels* unpack_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa >= Isa::Avx512 && has_avx512_bf16()) return &kUnpackAvx512Bf16;
#endif
  return nullptr;
}

}  // namespace sluice::backend::cpu
