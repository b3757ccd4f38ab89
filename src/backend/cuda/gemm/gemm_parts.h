// What GEMMs' ops are put together from: packing of tokens, the order of experts, products, sums of experts.
// Host launchers; the kernels stand in files of their own.
#pragma once

#include <span>

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/host/kernel.h"

namespace sluice::backend::cuda {

/// Pairs row * used + k by expert (ids lie without gaps): list holds each expert's pairs, rows ascending,
/// filled up with -1 to whole groups; tiles are stretches of it of at most tile_tokens. counts: how many
/// tiles, how long the list.
struct OrderPlan {
  Rows<int32_t> ids;
  const int32_t* rows;
  int32_t used, experts, tile_tokens;
  int32_t* list;
  TokenTile* tiles;
  int32_t* counts;
};

/// Experts a row that combine_experts adds at most.
inline constexpr int kMostUsed = 64;

/// out[r] = base[r] + sum over k, in the order of ids, of weights[r, k] * each[r * used + k]
struct CombinePlan {
  Rows<float> base, weights, out;
  Rows<int32_t> ids;
  const float* each;  ///< [pairs][columns]
  const int32_t* rows;
  int32_t used;
};

/// Entries of an order's list, and its tiles, at most.
constexpr int64_t list_entries(int64_t pairs, int64_t experts) {
  return pairs + (experts < pairs ? experts : pairs) * (kGroupTokens - 1);
}
constexpr int64_t list_tiles(int64_t pairs, int64_t experts, int64_t tile_tokens) {
  return pairs / tile_tokens + (experts < pairs ? experts : pairs);
}

void pack_tokens(const PackPlan& plan, int64_t slots, const Context& context);
/// Two packings in one launch.
void pack_tokens(const PackPlan& one, int64_t slots_of_one, const PackPlan& other, int64_t slots_of_other,
                 const Context& context);
/// Columns of a row that packing holds in registers, and may norm (PackPlan::norm).
inline constexpr int64_t kHeldColumns = 4096;
void order_pairs(const OrderPlan& plan, const Context& context);
void combine_experts(const CombinePlan& plan, const Context& context);

/// Whether this build has the kernels of warpgroups for the device in hand (compute capability 9.0, and not
/// by way of another one's code).
bool has_wgmma();

/// Products of the same tokens with weights of one type and width (one or two), by streaming
/// (gemm_stream.cuh), for `tiles` tiles of tokens of each at most; false: they are not of a shape for it,
/// and nothing was started.
bool multiply_streamed(std::span<const Product> products, std::span<const int64_t> tiles,
                       const Context& context);

/// The product on tensor cores, for `tiles` tiles of tokens at most. by_wgmma: tokens lie in n-tiles.
void multiply_gemm(const Product& product, int64_t tiles, bool by_wgmma, const Context& context);

}  // namespace sluice::backend::cuda
