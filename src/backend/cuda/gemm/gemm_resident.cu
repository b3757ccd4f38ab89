// Products of up to 32 tokens with the output matrix (gemm/gemm_resident.cuh): which shapes.
#include <algorithm>

#include "backend/cuda/gemm/gemm_cluster.h"
#include "backend/cuda/gemm/gemm_resident.cuh"
#include "backend/cuda/host/architecture.h"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {
namespace {

/// Tiles of an SM at least: one for each of its warpgroups.
constexpr int64_t kLeastTiles = 4;
/// Of fewer, streams cost less to multiply (gemm_stream.cuh).
constexpr int64_t kLeastTokens = 9;

template <Family kFamily, quant::Type kOwn>
void start(const Product& product, const Context& context) {
  constexpr quant::Type kAny = quant::Type::F32;
  const auto tiles = static_cast<int>(product.weight.rows / resident::kTileRows);
  const LaunchShape shape{dim3(static_cast<unsigned>(context.sm_count)), dim3(resident::kThreads),
                          int64_t{product.tokens.chunks} * resident::kChunkBytes + 1024};
  if constexpr (kFamily == Family::Bits4 || kFamily == Family::Bits5) {
    if (product.weight.type != kOwn)
      return launch(context, multiply_resident<kFamily, kAny>, shape, product, tiles);
  }
  launch(context, multiply_resident<kFamily, kOwn>, shape, product, tiles);
}

}  // namespace

bool serves_resident(const Product& product, int64_t tokens) {
  const Matrix& m = product.weight;
  Family family{};
  if (tokens < kLeastTokens || tokens > resident::kTokens || !has_wgmma() || !family_of(m.type, family))
    return false;
  const int64_t chunks = m.columns / kChunkColumns;
  return (family == Family::Bits4 || family == Family::Bits5 || family == Family::Bits6 ||
          family == Family::Bits8) &&
         !product.gated && product.sink.residual == nullptr && product.bias == nullptr && m.matrices == 1 &&
         m.columns % (2 * kChunkColumns) == 0 && chunks <= resident::kMostChunks &&
         m.rows % resident::kTileRows == 0 &&
         m.rows / resident::kTileRows >= kLeastTiles * current_sm_count() &&
         (m.first_row + m.rows) * (m.columns / 32) <= INT32_MAX;
}

void multiply_resident_tokens(const Product& product, const Context& context) {
  using quant::Type;
  Family family{};
  family_of(product.weight.type, family);
  switch (family) {
    case Family::Bits4: return start<Family::Bits4, Type::Q4_0>(product, context);
    case Family::Bits5: return start<Family::Bits5, Type::Q5_K>(product, context);
    case Family::Bits6: return start<Family::Bits6, Type::Q6_K>(product, context);
    case Family::Bits8: return start<Family::Bits8, Type::Q8_0>(product, context);
    default: return;
  }
}

}  // namespace sluice::backend::cuda
