// Gates and ups of up to 32 rows whose codes every thread block keeps, so that a warp may take any item
// (experts_small_batch.cu).
#pragma once

#include <type_traits>

#include "backend/cuda/moe/experts_small_batch.cuh"
#include "backend/cuda/router/select_small_batch.cuh"

namespace sluice::backend::cuda::experts {

inline constexpr int kRowsResident = 32, kPairsResident = 256, kTilesResident = 128;

struct ResidentArgs {
  RowPairs map;
  Matrix weight, up;
  Rows<float> out;
  const int32_t* rows;
  Divisor per_row, across;  ///< experts of a row, items of a tile
  int8_mma::TokenRows token;
  const char* coded;
  Mailbox selection;
  unsigned* taken;
};

/// What a thread block knows of the step's pairs.
struct ResidentLists {
  int32_t count[kMostExperts];
  int16_t first_tile[kMostExperts], tiles[kTilesResident];  ///< an expert's first tile, a tile's expert
  alignas(16) int16_t list[kTilesResident][8];              ///< a tile's tokens: their pairs; -1: none
  int16_t ids[kPairsResident];
  int32_t all_tiles;
};
/// Of shared memory, less a few words of the kernel's own.
inline constexpr int64_t kResidentShared = kAllShared - int64_t{sizeof(ResidentLists)} - 512;

/// Rings of its warps: of Q4_K one less, so that 32 rows of 2,048 columns with the sums of their codes find
/// room; not with shared experts, which come with few rows and count on all warps.
template <quant::Type kType, bool kShared>
using ResidentRing = Ring<kType, kType == quant::Type::Q4_K && !kShared ? 15 : int8_mma::kRingWarps<kType>>;

/// In the place of few::GateUpItems.
struct NoSharedExperts {};

/// Gates and ups. Items go to whichever warp is free: SMs do not get their weights equally fast. 19 MB are
/// asked for at once and come all at once, 5 us later, and whatever is asked for behind them comes later
/// still. So with shared experts all else is asked for first, and they are multiplied until the first pieces
/// come. Every thread block selects for itself then (selection): a trip over the mailbox less.
template <quant::Type kType, typename Shared>
__device__ __forceinline__ void multiply_resident_rows(const ResidentArgs& p, const PdlLink& pdl,
                                                       Shared shared, const RowSelection* selection) {
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
  constexpr bool kShared = !std::is_same_v<Shared, NoSharedExperts>;
  using OwnRing = ResidentRing<kType, kShared>;
  constexpr int kTokens = 8, kWarps = OwnRing::kWarps, kThreads = OwnRing::kThreads;
  static_assert(!kShared || kThreads == small_batch::kThreads);
  extern __shared__ __align__(128) char batch_shared[];
  __shared__ ResidentLists lists;
  auto& count = lists.count;
  auto& first_tile = lists.first_tile;
  auto& tiles = lists.tiles;
  auto& ids = lists.ids;
  int32_t& all_tiles = lists.all_tiles;
  auto& list = lists.list;
  __shared__ __align__(8) uint64_t barriers[kWarps * kSlots];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index();
  const int rows = *p.rows,
            pairs = rows * p.per_row.by;  // *p.rows: uploaded before the step's first kernel, no wait
  const uint32_t flag = p.selection.flag();
  const uint32_t own_barriers = shared_address(barriers + warp * kSlots);
  [[maybe_unused]] float bias = 0;  // of expert threadIdx.x
  if constexpr (kShared) {
    if (selection->bias != nullptr && static_cast<int>(threadIdx.x) < selection->rule.experts)
      bias = __ldg(selection->bias + threadIdx.x);
    shared.ask_weights();
  }
  if (threadIdx.x == 0) OwnRing::fetch(p.map);
  if (lane < kSlots)
    barrier_init(own_barriers + 8 * static_cast<uint32_t>(lane), OwnRing::kArrivals), barrier_init_fence();
  for (int i = static_cast<int>(threadIdx.x); i < kMostExperts; i += kThreads) count[i] = 0;
  if (threadIdx.x < kTilesResident) *reinterpret_cast<uint4*>(list[threadIdx.x]) = {~0u, ~0u, ~0u, ~0u};
  [[maybe_unused]] __shared__ float biases[kShared ? kMostExperts : 1], shares[kTokens];
  if constexpr (kShared) {
    if (threadIdx.x < kMostExperts) biases[threadIdx.x] = bias;
  }
  __syncthreads();

  // A thread has a pair: its place among its expert's.
  int pair = static_cast<int>(threadIdx.x), id = 0, rank = 0;
  if constexpr (kShared) {
    pair = warp < rows && lane < p.per_row.by ? warp * p.per_row.by + lane : pairs;
    if (warp < rows) id = select_row(*selection, warp, biases, flag, blockIdx.x == 0);
    if (warp == kWarps - 1 && lane < rows)
      take_slot<true>(selection->mailbox.slots + kPackedSlots + lane, flag);
    if (warp == kWarps - 2 && lane < rows)
      shares[lane] = selection->shares != nullptr ? sigmoid(take_slot(selection->shares + lane, flag)) : 1.0f;
  } else {
    if (pair < pairs) id = __float_as_int(take_slot(p.selection.slots + pair, flag));
  }
  if (pair < pairs) rank = atomicAdd(&count[id], 1), ids[pair] = static_cast<int16_t>(id);
  __syncthreads();
  const OwnRing ring(batch_shared, p.weight);
  char* const tokens = batch_shared + OwnRing::kBytes;
  const auto ask_tokens = [&] {
    for (int i = static_cast<int>(threadIdx.x); i < rows * (p.token.pitch / 16); i += kThreads)
      copy_async(shared_address(tokens + 16 * i), p.coded + 16 * i);
    commit_copies();
  };
  if constexpr (kShared) shared.ask_tokens(rows), ask_tokens();
  if (warp == 0) {
    int before = 0;
    for (int base = 0; base < p.weight.matrices; base += 32) {
      const int e = base + lane, own = (count[e] + kTokens - 1) / kTokens;
      int sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, sum, step);
        if (lane >= step) sum += other;
      }
      const int first = before + sum - own;
      first_tile[e] = static_cast<int16_t>(first);
      for (int i = 0; i < own; ++i) tiles[first + i] = static_cast<int16_t>(e);
      before += __shfl_sync(kWholeWarp, sum, 31);
    }
    if (lane == 0) all_tiles = before;
  }
  __syncthreads();
  // Where an expert has several tiles, all blocks must agree on which pairs are in which.
  if (pair < pairs && count[id] > kTokens) {
    rank = 0;
#pragma unroll 1
    for (int i = 0; i < pair; ++i) rank += ids[i] == id ? 1 : 0;
  }
  if (pair < pairs) {
    list[first_tile[id] + rank / kTokens][rank % kTokens] = static_cast<int16_t>(pair);
  }

  // Items: what is asked for next, and what comes behind it.
  const int items = all_tiles * p.across.by, all_quads = p.weight.columns / kQuad;
  int tile = 0, row = 0, left = 0, line = 0, map_row = 0;
  unsigned next = 0;
  const int8_mma::SuperOfLane own;
  const Matrix& own_matrix = (own.h != 0) != p.map.swapped ? p.up : p.weight;
  const uint8_t* supers = nullptr;  // of this lane's row
  const auto begin_item = [&](int item) {
    tile = p.across(item), row = (item - tile * p.across.by) * 8;
    map_row = uniform(tiles[tile] * static_cast<int>(p.weight.matrix_rows) + row);
    line = 0, left = all_quads;
    if constexpr (OwnRing::kSuper)
      supers = OwnRing::Supers::of_row(own_matrix, own_matrix.row(tiles[tile], row + own.g));
  };
  const auto take_item = [&] {
    if (lane == 0) next = atomicAdd(p.taken, 1u);
  };
  int item = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x);
  const auto ask = [&](int slot) {
    if (left <= 0 && item < items) {
      item = static_cast<int>(__shfl_sync(kWholeWarp, next, 0)) + kWarps * static_cast<int>(gridDim.x);
      if (item < items) begin_item(item), take_item();
    }
    if (left <= 0) return;
    ring.ask(p.map, map_row, line, supers, all_quads / 2, warp, slot,
             own_barriers + 8 * static_cast<uint32_t>(slot));
    line += OwnRing::kGroups, left -= kMostQuads;
  };
  if (item < items) begin_item(item);
  ask(0);
  if constexpr (kShared) {
    __shared__ float reduction[Shared::kReductionFloats];
    ask(1);
    take_item();
    shared.multiply(reduction);
    pdl.wait();
    wait_copies<0>();
    __syncthreads();
    shared.store(reduction, rows, shares);
  } else {
    // Tokens come before a second round of weights.
    pdl.wait();
    take_item();
    ask_tokens();
    ask(1);
    wait_copies<0>();
    __syncthreads();
  }

  int slot = 0;
  uint32_t phase = 0;  // of the barriers: a round of the slots
  for (int at_hand = item; at_hand < items; at_hand = item) {
    const int16_t* const of_tile = list[tile];
    const int first_output = row;
    const auto row_of = [&](int token) { return p.per_row(max(int{of_tile[token]}, 0)); };
    int8_mma::TokensAt<> at(tokens, p.token, 0, row_of);
    float total[1][4] = {};
    for (int to_do = all_quads; to_do > 0; to_do -= kMostQuads) {
      barrier_wait(own_barriers + 8 * static_cast<uint32_t>(slot), phase);
      const auto piece = ring.piece(warp, slot);
      int8_mma::multiply_pairs<kType>(piece, min(to_do, kMostQuads) / 2, at, 0, total);
      __syncwarp();
      ask(slot);
      if (++slot == kSlots) slot = 0, phase ^= 1;
    }
    const bool up_first = p.map.swapped;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int token = 2 * (lane % 4) + j;
      const float gate = up_first ? total[0][j + 2] : total[0][j];
      const float up = up_first ? total[0][j] : total[0][j + 2];
      const int of_pair = of_tile[token], r = p.per_row(max(of_pair, 0));
      if (of_pair >= 0) p.out(r, of_pair - r * p.per_row.by)[first_output + lane / 4] = silu(gate) * up;
    }
  }
#endif
}

template <quant::Type kType>
__global__ void __launch_bounds__(ResidentRing<kType, false>::kThreads, 1)
    experts_of_resident_rows(const Timestamps timestamps, const __grid_constant__ ResidentArgs p) {
  const PdlLink pdl(timestamps);
  multiply_resident_rows<kType>(p, pdl, NoSharedExperts{}, nullptr);
}

template <quant::Type kType, quant::Type kSharedType>
__global__ void __launch_bounds__(ResidentRing<kType, true>::kThreads, 1)
    experts_of_resident_rows_and_shared(const Timestamps timestamps, const __grid_constant__ ResidentArgs p,
                                        const __grid_constant__ SelectAndShared more) {
  const PdlLink pdl(timestamps);
  multiply_resident_rows<kType>(p, pdl, small_batch::GateUpItems<kSharedType>(more.shared), &more.selection);
}

/// Whether there is a kernel for shared experts of this type beside.
constexpr bool keeps_with(quant::Type routed, quant::Type shared) {
  using quant::Type;
  return routed == Type::Q4_0 ? shared == Type::Q5_K || shared == Type::Q4_0
                              : routed == Type::Q4_K && shared == Type::Q4_K;
}

/// Starts the kernel of a type. more: or null.
template <quant::Type kType>
void start_resident(const ResidentArgs& args, const SelectAndShared* more, const Context& context) {
  using quant::Type;
  const auto start = [&]<bool kShared>(auto kernel, const auto&... rest) {
    using OwnRing = ResidentRing<kType, kShared>;
    const LaunchShape shape{dim3(static_cast<unsigned>(context.sm_count)), dim3(OwnRing::kThreads),
                            OwnRing::kBytes + context.step_rows * args.token.pitch};
    launch(context, kernel, shape, args, rest...);
  };
  if (more == nullptr) return start.template operator()<false>(experts_of_resident_rows<kType>);
  if constexpr (keeps_with(kType, Type::Q5_K)) {
    if (more->shared.gate.type == Type::Q5_K)
      return start.template operator()<true>(experts_of_resident_rows_and_shared<kType, Type::Q5_K>, *more);
  }
  if constexpr (keeps_with(kType, kType))
    start.template operator()<true>(experts_of_resident_rows_and_shared<kType, kType>, *more);
}

extern template void start_resident<quant::Type::Q4_0>(const ResidentArgs&, const SelectAndShared*,
                                                       const Context&);
extern template void start_resident<quant::Type::Q4_K>(const ResidentArgs&, const SelectAndShared*,
                                                       const Context&);
extern template void start_resident<quant::Type::Q5_0>(const ResidentArgs&, const SelectAndShared*,
                                                       const Context&);
extern template void start_resident<quant::Type::Q5_K>(const ResidentArgs&, const SelectAndShared*,
                                                       const Context&);
extern template void start_resident<quant::Type::Q6_K>(const ResidentArgs&, const SelectAndShared*,
                                                       const Context&);
extern template void start_resident<quant::Type::Q8_0>(const ResidentArgs&, const SelectAndShared*,
                                                       const Context&);
extern template void start_resident<quant::Type::IQ4_NL>(const ResidentArgs&, const SelectAndShared*,
                                                         const Context&);
extern template void start_resident<quant::Type::IQ4_XS>(const ResidentArgs&, const SelectAndShared*,
                                                         const Context&);
extern template void start_resident<quant::Type::MXFP4>(const ResidentArgs&, const SelectAndShared*,
                                                        const Context&);

}  // namespace sluice::backend::cuda::experts
