// Defines launch_tiles and launch_large of one family: for the files ops/tiles_<family>.cu, which are many
// only so that compilers work side by side.
#pragma once

#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/tiles_mma.cuh"
#include "backend/cuda/prim/tiles_wgmma.cuh"

namespace sluice::backend::cuda {

template <Family kFamily, int kStrips>
void launch_strips(const Product& product, int64_t tiles, const Context& context) {
  // Where few tokens go to one matrix, its outputs alone are too few warps.
  const bool shares_columns = product.plan.tiles == nullptr && product.plan.per_matrix <= 256;
  const int64_t outputs = tile_outputs(product.gated, shares_columns);
  const auto across = static_cast<unsigned>((product.weight.rows + outputs - 1) / outputs);
  launch(context,
         shares_columns ? multiply_tiles<kFamily, kStrips, true> : multiply_tiles<kFamily, kStrips, false>,
         {dim3(across, static_cast<unsigned>(tiles)), dim3(kTileThreads),
          tile_shared_bytes(kStrips, shares_columns)},
         product);
}

template <Family kFamily>
void launch_tiles(const Product& product, int64_t tiles, const Context& context) {
  switch (product.plan.tile_tokens / kStripTokens) {
    case 1: return launch_strips<kFamily, 1>(product, tiles, context);
    case 2: return launch_strips<kFamily, 2>(product, tiles, context);
    case 4: return launch_strips<kFamily, 4>(product, tiles, context);
    default: return launch_strips<kFamily, 8>(product, tiles, context);
  }
}

template <Family kFamily>
void launch_large(const Product& product, int64_t tiles, const Context& context) {
  const int64_t outputs = product.gated ? kLargeOutputs / 2 : kLargeOutputs;
  const auto across = static_cast<unsigned>((product.weight.rows + outputs - 1) / outputs);
  launch(context, multiply_large<kFamily>,
         {dim3(across, static_cast<unsigned>(tiles)), dim3(kLargeThreads), large::kSharedBytes}, product);
}

}  // namespace sluice::backend::cuda
