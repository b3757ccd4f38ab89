// Products of 9 tokens and more with plain matrices and heads (gemm/gemm_cluster.cuh): which shapes, and how
// many thread blocks share the columns.
#include "backend/cuda/gemm/gemm_cluster.h"

#include <algorithm>
#include <array>

#include "backend/cuda/gemm/gemm_cluster.cuh"
#include "backend/cuda/host/on_device.h"
#include "backend/cuda/prim/launch.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int64_t kLeastTokens = 9, kMostTokens = 128;  ///< of a tile
/// Outputs of a matrix at most, where tokens are more than 64: those of many tiles are left to
/// gemm_wgmma.cuh, which reads tokens once for 128 outputs.
constexpr int64_t kMostOutputs = 32768;
/// Columns of products whose warpgroups share them two and two.
constexpr int64_t kNarrowChunks = 2;
/// Thread blocks at most of more tokens than a tile: three waves of an H100, or any number of short ones.
/// Beyond that gemm_wgmma.cuh is faster, which unpacks a weight for 256 tokens.
constexpr int64_t kMostTiles = 400, kMostNarrowTiles = 2000;

/// Outputs of a thread block.
int64_t outputs_of(const Product& product, bool narrow) {
  return (product.gated ? cluster::kTileRows / 2 : cluster::kTileRows) * (narrow ? 2 : 1);
}

bool in_fours(const void* data, int64_t stride) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 4 == 0;
}

/// Clusters of so many blocks that are on the device at a time.
using MostClusters = std::array<int, cluster::kMostBlocks + 1>;
template <typename Kernel>
MostClusters count_clusters(Kernel kernel, int64_t shared) {
  MostClusters most{};
  for (int blocks = 2; blocks <= cluster::kMostBlocks; ++blocks) {
    most[static_cast<size_t>(blocks)] =
        most_clusters(kernel, {dim3(static_cast<unsigned>(blocks)), dim3(cluster::kThreads), shared, blocks});
  }
  return most;
}
/// Blocks of a cluster: as many as let all clusters be on the device at a time and leave each two chunks.
int cluster_blocks(const MostClusters& most, int clusters, int chunks) {
  int blocks = 1;
  for (int more = 2; more <= cluster::kMostBlocks; ++more) {
    if (clusters <= most[static_cast<size_t>(more)] && chunks >= more * 2) blocks = more;
  }
  return blocks;
}

template <Family kFamily, quant::Type kType, int kTokens, int kAlong>
void start(cluster::Args args, int64_t tokens, const Context& context) {
  const auto kernel = multiply_cluster<kFamily, kType, kTokens, kAlong>;
  const int clusters = args.item[cluster::kMostProducts - 1].end,
            tiles = static_cast<int>((tokens + kTokens - 1) / kTokens),
            chunks = args.item[0].product.tokens.chunks;
  constexpr int64_t kShared = cluster::shared_bytes(kTokens);
  static PerDevice<MostClusters> counted;
  const MostClusters& most = counted.of_current([&] { return count_clusters(kernel, kShared); });
  args.blocks = kAlong < cluster::kGroups ? 1 : cluster_blocks(most, clusters * tiles, chunks);
  launch(context, kernel,
         {dim3(static_cast<unsigned>(clusters * args.blocks), static_cast<unsigned>(tiles)),
          dim3(cluster::kThreads), kShared, args.blocks},
         args);
}

template <Family kFamily, quant::Type kType, int kTokens>
void start_tokens(const cluster::Args& args, int64_t tokens, bool narrow, const Context& context) {
  narrow ? start<kFamily, kType, kTokens, 2>(args, tokens, context)
         : start<kFamily, kType, kTokens, 4>(args, tokens, context);
}
template <Family kFamily, quant::Type kType>
void start_type(const cluster::Args& args, int64_t tokens, bool narrow, const Context& context) {
  tokens <= 32   ? start_tokens<kFamily, kType, 32>(args, tokens, narrow, context)
  : tokens <= 64 ? start_tokens<kFamily, kType, 64>(args, tokens, narrow, context)
                 : start_tokens<kFamily, kType, 128>(args, tokens, narrow, context);
}

/// A family's most common type has kernels of its own: they need not ask.
template <Family kFamily, quant::Type kOwn>
void start_family(const cluster::Args& args, int64_t tokens, bool narrow, const Context& context) {
  const auto other = [](const Product& p) { return p.weight.type != kOwn || (p.gated && p.up.type != kOwn); };
  const bool any = std::any_of(std::begin(args.item), std::end(args.item), [&](const cluster::Item& item) {
    return item.across > 0 && other(item.product);
  });
  if (!any) return start_type<kFamily, kOwn>(args, tokens, narrow, context);
  if constexpr (kFamily == Family::Bits4 || kFamily == Family::Bits5)
    start_type<kFamily, quant::Type::F32>(args, tokens, narrow, context);
}

}  // namespace

bool serves_cluster(const Product& product, int64_t tokens) {
  Family family{};
  if (tokens < kLeastTokens || !has_wgmma() || !family_of(product.weight.type, family) || is_float(family) ||
      family == Family::Bits2And3 || family == Family::Table || family == Family::Points) {
    return false;
  }
  const Sink& sink = product.sink;
  const int64_t chunks = (product.weight.columns + kChunkColumns - 1) / kChunkColumns;
  if (tokens > 64 && product.weight.rows * product.weight.matrices > kMostOutputs) return false;
  if (tokens > kMostTokens) {
    const bool narrow = chunks <= kNarrowChunks;
    const int64_t tiles =
        (tokens + kMostTokens - 1) / kMostTokens * product.weight.matrices *
        ((product.weight.rows + outputs_of(product, narrow) - 1) / outputs_of(product, narrow));
    if (tiles > (narrow ? kMostNarrowTiles : kMostTiles)) return false;
  }
  return chunks <= cluster::kMostChunks &&
         product.weight.rows % (product.gated ? cluster::kTileRows / 2 : 4) == 0 &&
         in_fours(sink.out.data, sink.out.row_stride) && sink.out.head_stride % 4 == 0 &&
         in_fours(sink.residual, sink.residual_stride) && in_fours(product.bias, 0) &&
         (!product.gated || product.is_plain());
}

bool multiply_cluster_together(std::span<const Product> products, int64_t tokens, const Context& context,
                               const CombinePlan* added) {
  const Product& first = products[0];
  Family family{};
  family_of(first.weight.type, family);
  if (products.size() > cluster::kMostProducts) return false;
  if (added != nullptr && (added->used > cluster::kMostAdded || first.gated || first.weight.matrices > 1))
    return false;
  for (const Product& product : products) {
    Family other{};
    if (!family_of(product.weight.type, other) || other != family || product.gated != first.gated ||
        product.weight.columns != first.weight.columns || !serves_cluster(product, tokens)) {
      return false;
    }
  }
  const bool narrow = first.tokens.chunks <= kNarrowChunks;
  const int64_t outputs = outputs_of(first, narrow);
  cluster::Args args{};
  if (added != nullptr) args.added = {added->each, added->ids, added->weights, added->used};
  int64_t all = 0;
  for (size_t i = 0; i < cluster::kMostProducts; ++i) {
    cluster::Item& item = args.item[i];
    if (i < products.size()) {
      item.product = products[i];
      item.across = static_cast<int32_t>((products[i].weight.rows + outputs - 1) / outputs);
      all += int64_t{item.across} * products[i].weight.matrices;
    }
    item.end = static_cast<int32_t>(all);
  }
  using quant::Type;
  switch (family) {
    case Family::Bits4: start_family<Family::Bits4, Type::Q4_0>(args, tokens, narrow, context); break;
    case Family::Bits5: start_family<Family::Bits5, Type::Q5_K>(args, tokens, narrow, context); break;
    case Family::Bits6: start_family<Family::Bits6, Type::Q6_K>(args, tokens, narrow, context); break;
    case Family::Bits8: start_family<Family::Bits8, Type::Q8_0>(args, tokens, narrow, context); break;
    default: return false;
  }
  return true;
}

}  // namespace sluice::backend::cuda
