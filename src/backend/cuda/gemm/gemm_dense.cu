// Which kernel multiplies how many tokens with a plain matrix or heads, and in what tiles.
#include "backend/cuda/gemm/gemm_dense.h"

#include <algorithm>
#include <vector>

#include "backend/cuda/gemm/gemm_cluster.h"

namespace sluice::backend::cuda {
namespace {

/// Tokens that a matrix has to have for warpgroups to be worth their tiles.
constexpr int64_t kLargeTokensLeast = 96;

int64_t large_blocks(int64_t tokens, int64_t outputs, int64_t matrices, int64_t tile) {
  return (outputs + 127) / 128 * ((tokens + tile - 1) / tile) * matrices;
}
/// Whether one matrix's products fill a device with warpgroups, if need be with small tiles.
bool dense_by_wgmma(int64_t tokens, int64_t outputs, int64_t matrices) {
  return tokens >= kLargeTokensLeast && large_blocks(tokens, outputs, matrices, 64) >= 72 && has_wgmma();
}
/// Tokens of a tile of one matrix: as many as leave a device enough thread blocks.
int32_t dense_tile(int64_t tokens, int64_t outputs, int64_t matrices, bool by_wgmma) {
  if (!by_wgmma) return tile_for(tokens);
  int32_t tile = kLargeTokens;
  while (tile > 64 && large_blocks(tokens, outputs, matrices, tile) < 100) tile /= 2;
  return tile;
}

/// A product of tokens that are packed, and how many tiles of tokens it has.
struct Planned {
  Product product;
  int64_t tiles;
};
Planned planned(const Dense& d, bool n_tiles, const Packed& packed) {
  const int64_t per_matrix = slots_per_matrix(d.rows, n_tiles), heads = d.weight.matrices;
  const int32_t tile = dense_tile(d.rows, d.weight.rows * (d.gated ? 2 : 1), heads, n_tiles);
  const TokenPlan plan{nullptr, nullptr, nullptr, d.count, static_cast<int32_t>(per_matrix), tile, 0};
  const Sink sink{d.out, d.residual, d.residual_stride, 1, heads > 1 ? 1 : 0};
  return {{d.weight, d.up, d.gated, tokens_of(packed, d.in.columns), plan, sink, d.bias},
          heads * ((per_matrix + tile - 1) / tile)};
}

/// Whether clusters multiply it (gemm_cluster.h).
bool by_cluster(const Dense& d) {
  const Sink sink{d.out, d.residual, d.residual_stride, 1, 0};
  return serves_cluster({d.weight, d.up, d.gated, {}, {}, sink, d.bias}, d.rows);
}
bool by_resident(const Dense& d) {
  const Sink sink{d.out, d.residual, d.residual_stride, 1, 0};
  return serves_resident({d.weight, d.up, d.gated, {}, {}, sink, d.bias}, d.rows);
}

}  // namespace

int32_t tile_for(int64_t tokens) { return tokens <= 8 ? 8 : tokens <= 16 ? 16 : tokens <= 32 ? 32 : 64; }

bool by_wgmma(const Dense& d) {
  return by_cluster(d) || by_resident(d) ||
         dense_by_wgmma(d.rows, d.weight.rows * (d.gated ? 2 : 1), d.weight.matrices);
}
int64_t slots_per_matrix(int64_t rows, bool n_tiles) {
  return n_tiles || rows > kGroupTokens ? whole_groups(rows) : tile_for(rows);
}
PackPlan packing_of(const Dense& d, bool n_tiles, const Packed& packed) {
  return {d.in,        nullptr, d.count, static_cast<int32_t>(slots_per_matrix(d.rows, n_tiles)),
          1,           false,   n_tiles, packed.data,
          packed.scale};
}

void multiply_packed(const Dense& d, bool n_tiles, const Packed& packed, const Context& context) {
  const auto [product, tiles] = planned(d, n_tiles, packed);
  if (n_tiles && by_resident(d)) return multiply_resident_tokens(product, context);
  if (n_tiles && by_cluster(d) && multiply_cluster_together({&product, 1}, d.rows, context)) return;
  multiply_gemm(product, tiles, n_tiles, context);
}

bool multiply_and_combine(const Dense& d, bool n_tiles, const Packed& packed, const CombinePlan& experts,
                          const Context& context) {
  if (!n_tiles || by_resident(d) || !by_cluster(d)) return false;
  const Product product = planned(d, n_tiles, packed).product;
  return multiply_cluster_together({&product, 1}, d.rows, context, &experts);
}

void multiply_dense(const Dense& d, const Context& context, Scratch scratch) {
  const bool n_tiles = by_wgmma(d);
  const int64_t slots = slots_per_matrix(d.rows, n_tiles) * d.weight.matrices;
  const Packed packed = take_packed(scratch, slots, d.in.columns);
  pack_tokens(packing_of(d, n_tiles, packed), slots, context);
  multiply_packed(d, n_tiles, packed, context);
}

void multiply_together(std::span<const Dense> all, bool n_tiles, const Packed& packed,
                       const Context& context) {
  std::vector<Dense> list, others;  // of the first's type, of other ones
  for (const Dense& d : all) (d.weight.type == all[0].weight.type ? list : others).push_back(d);
  if (!others.empty()) multiply_together(others, n_tiles, packed, context);
  while (list.size() >= 2 && !n_tiles) {
    const Planned first = planned(list[0], n_tiles, packed), second = planned(list[1], n_tiles, packed);
    const Product both[] = {first.product, second.product};
    const int64_t tiles[] = {first.tiles, second.tiles};
    if (!multiply_streamed(both, tiles, context)) break;
    list.erase(list.begin(), list.begin() + 2);
  }
  std::vector<Product> together;
  for (const Dense& d : list)
    if (n_tiles && by_cluster(d)) together.push_back(planned(d, n_tiles, packed).product);
  const bool done = together.size() >= 2 && multiply_cluster_together(together, list[0].rows, context);
  for (const Dense& d : list)
    if (!done || !by_cluster(d)) multiply_packed(d, n_tiles, packed, context);
}

int64_t dense_scratch(int64_t rows, int64_t heads, int64_t columns) {
  Scratch scratch(nullptr);
  take_packed(scratch, whole_groups(rows) * heads, columns);
  return scratch.bytes();
}

}  // namespace sluice::backend::cuda
