// Defines launch_tiles, launch_stream and launch_large of one family: for the files gemm_mma_<family>.cu and
// gemm_wgmma_<family>.cu, which are many only so that compilers work side by side.
#pragma once

#include "backend/cuda/gemm/gemm_mma.cuh"
#include "backend/cuda/gemm/gemm_stream.cuh"
#include "backend/cuda/gemm/gemm_wgmma.cuh"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {

template <Family kFamily, int kNTiles>
void launch_n_tiles(const Product& product, int64_t tiles, const Context& context) {
  // Where few tokens go to one matrix, its outputs alone are too few warps.
  const bool shares_columns = product.plan.tiles == nullptr && product.plan.per_matrix <= 256;
  const int64_t outputs = tile_outputs(product.gated, shares_columns);
  const auto across = static_cast<unsigned>((product.weight.rows + outputs - 1) / outputs);
  launch(context,
         shares_columns ? multiply_tiles<kFamily, kNTiles, true> : multiply_tiles<kFamily, kNTiles, false>,
         {dim3(across, static_cast<unsigned>(tiles)), dim3(kTileThreads),
          tile_shared_bytes(kNTiles, shares_columns)},
         product);
}

template <Family kFamily>
void launch_tiles(const Product& product, int64_t tiles, const Context& context) {
  switch (product.plan.tile_tokens / kNTileTokens) {
    case 1: return launch_n_tiles<kFamily, 1>(product, tiles, context);
    case 2: return launch_n_tiles<kFamily, 2>(product, tiles, context);
    case 4: return launch_n_tiles<kFamily, 4>(product, tiles, context);
    default: return launch_n_tiles<kFamily, 8>(product, tiles, context);
  }
}

template <Family kFamily, quant::Type kType, int kNTiles, bool kGated>
void launch_streamed(const stream::Args& args, const Context& context) {
  const int64_t shared = int64_t{args.slots} * args.slot_bytes + stream::reduction_bytes(kNTiles, kGated) +
                         stream::token_slots_bytes(kNTiles);
  const auto blocks = static_cast<unsigned>(std::min(context.sm_count, args.items));
  launch(context, multiply_stream<kFamily, kNTiles, kGated, kType>,
         {dim3(blocks), dim3(stream::kThreads), shared}, args);
}

template <Family kFamily, quant::Type kType, int kNTiles>
void launch_sides(const stream::Args& args, const Context& context) {
  return args.item[0].product.gated ? launch_streamed<kFamily, kType, kNTiles, true>(args, context)
                                    : launch_streamed<kFamily, kType, kNTiles, false>(args, context);
}

template <Family kFamily, quant::Type kType>
void launch_type(const stream::Args& args, const Context& context) {
  switch (args.n_tiles) {
    case 1: return launch_sides<kFamily, kType, 1>(args, context);
    case 2: return launch_sides<kFamily, kType, 2>(args, context);
    default: return launch_sides<kFamily, kType, 4>(args, context);
  }
}

/// A family's most common type has kernels of its own: they need not ask. F32: no type has.
template <Family kFamily>
constexpr quant::Type own_type() {
  using quant::Type;
  switch (kFamily) {
    case Family::Bits4: return Type::Q4_0;
    case Family::Bits5: return Type::Q5_K;
    case Family::Bits6: return Type::Q6_K;
    case Family::Bits8: return Type::Q8_0;
    default: return Type::F32;
  }
}
/// Whether a family has that type alone.
constexpr bool is_alone(Family family) { return family == Family::Bits6 || family == Family::Bits8; }

template <Family kFamily>
void launch_stream(const stream::Args& args, const Context& context) {
  constexpr quant::Type kOwn = own_type<kFamily>();
  if (args.item[0].product.weight.type == kOwn) return launch_type<kFamily, kOwn>(args, context);
  if constexpr (!is_alone(kFamily)) launch_type<kFamily, quant::Type::F32>(args, context);
}

template <Family kFamily, quant::Type kType, int kTokens>
void launch_shape(const Product& product, dim3 blocks, const Context& context) {
  using Shape = large::Shape<kTokens>;
  launch(context, multiply_large<kFamily, kType, kTokens>,
         {blocks, dim3(Shape::kThreads), Shape::kSharedBytes}, product);
}

template <Family kFamily, quant::Type kType>
void launch_large_type(const Product& product, int64_t tiles, const Context& context) {
  const int64_t outputs = product.gated ? kLargeOutputs / 2 : kLargeOutputs;
  const int64_t across = (product.weight.rows + outputs - 1) / outputs;
  const dim3 blocks(static_cast<unsigned>(across), static_cast<unsigned>(tiles));
  // Floats in registers leave no room for a second thread block.
  if constexpr (!is_float(kFamily)) {
    const bool in_pairs = across * tiles > context.sm_count;
    if (product.plan.tile_tokens <= kSmallTileTokens && in_pairs)
      return launch_shape<kFamily, kType, kSmallTileTokens>(product, blocks, context);
  }
  launch_shape<kFamily, kType, kLargeTokens>(product, blocks, context);
}

template <Family kFamily>
void launch_large(const Product& product, int64_t tiles, const Context& context) {
  constexpr quant::Type kOwn = own_type<kFamily>();
  if constexpr (kOwn != quant::Type::F32) {
    if (product.weight.type == kOwn && (!product.gated || product.up.type == kOwn))
      return launch_large_type<kFamily, kOwn>(product, tiles, context);
  }
  if constexpr (!is_alone(kFamily)) launch_large_type<kFamily, quant::Type::F32>(product, tiles, context);
}

}  // namespace sluice::backend::cuda
