// Chooses the kernel of a wide product by the weight's family: a switch, and nothing else.
#include "backend/cuda/cuda_check.h"
#include "backend/cuda/ops/wide_parts.h"
#include "backend/cuda/prim/tiles_wgmma.cuh"

namespace sluice::backend::cuda {
namespace {

template <Family kFamily>
void multiply_family(const Product& product, int64_t tiles, bool by_wgmma, const Context& context) {
  if (by_wgmma) return launch_large<kFamily>(product, tiles, context);
  launch_tiles<kFamily>(product, tiles, context);
}

}  // namespace

bool has_wgmma() {
  static const bool has = [] {
    int device = 0, major = 0;
    cudaFuncAttributes attributes{};
    check(cudaGetDevice(&device));
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    check(cudaFuncGetAttributes(&attributes, multiply_large<Family::Nibble>));
    return major == 9 && attributes.ptxVersion >= 90;
  }();
  return has;
}

void multiply_wide(const Product& product, int64_t tiles, bool by_wgmma, const Context& context) {
  Family family{};
  if (!family_of(product.weight.type, family)) return;  // who binds has asked before
  switch (family) {
    case Family::Nibble: return multiply_family<Family::Nibble>(product, tiles, by_wgmma, context);
    case Family::Five: return multiply_family<Family::Five>(product, tiles, by_wgmma, context);
    case Family::Six: return multiply_family<Family::Six>(product, tiles, by_wgmma, context);
    case Family::Eight: return multiply_family<Family::Eight>(product, tiles, by_wgmma, context);
    case Family::TwoThree: return multiply_family<Family::TwoThree>(product, tiles, by_wgmma, context);
    case Family::Table: return multiply_family<Family::Table>(product, tiles, by_wgmma, context);
    case Family::Float: return multiply_family<Family::Float>(product, tiles, by_wgmma, context);
  }
}

}  // namespace sluice::backend::cuda
