// The kernel of experts_small_batch.cu, compiled for a type of weights in a file each
// (experts_small_batch_*.cu), and what it shares with the one of kept rows (experts_resident.cuh).
#pragma once

#include "backend/cuda/host/kernels.h"
#include "backend/cuda/moe/experts_small_batch.h"
#include "backend/cuda/moe/shared_gate_up.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/mailbox.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/prim/weight_ring.cuh"
#include "backend/cuda/router/route.cuh"

namespace sluice::backend::cuda::experts {

using int8_mma::kMostQuads, int8_mma::kQuad, int8_mma::kSlots, int8_mma::Ring;
using small_batch::silu;
inline constexpr int kMostPairs = kMostSelected, kMostExperts = 256, kMostTokens = 16, kMostBuffers = 2;
inline constexpr int kMostTiles = kMostPairs / 8 + kMostExperts;
/// Shared memory beside what is asked for at launch.
inline constexpr int64_t kOwnShared = 9 * 1024;

/// Division of numbers whose product with the divisor is below 2^32, by a multiplication: a division is some
/// 40 instructions, and thread blocks begin with several.
struct Divisor {
  int32_t by;
  uint32_t inverse;  ///< zero: by is one

  static Divisor of(int32_t by) {
    return {by, by == 1 ? 0 : static_cast<uint32_t>((int64_t{1} << 32) / by + 1)};
  }
  __device__ int operator()(int n) const {
    return inverse == 0 ? n : static_cast<int>(__umulhi(static_cast<unsigned>(n), inverse));
  }
};

struct Args {
  RowPairs map;  ///< an item's rows: of gate and up, or eight and eight of one matrix
  Matrix weight, up;
  Rows<float> in, out;
  Rows<int32_t> ids;
  const int32_t* rows;
  Divisor per_row;  ///< experts
  int32_t by_pair;
  Divisor across;   ///< items of a tile
  int32_t buffers;  ///< tiles of tokens that there is room for
  int8_mma::TokenRows token;
  const char* coded;  ///< or null: rows are made codes here
  Mailbox selection;  ///< experts of pairs, put there or, without a router, taken from there; or null
  PackPlan beside;    ///< or none: data null
};

/// A tile of tokens in the step's order: an expert's pairs from the part-th 8 (or 16) on.
struct Tile {
  int16_t expert, part;
};

/// Who fills the rings: TMA; lanes, where rows are no whole pairs of quads or where shared memory is half as
/// large.
enum class Fill : uint8_t { Maps, Lanes, LanesOfSmall };

/// On small shared memory tokens need their room, too.
template <quant::Type kType, Fill kFill>
using RingOf = std::conditional_t<
    kFill == Fill::Maps, Ring<kType>,
    std::conditional_t<kFill == Fill::Lanes,
                       int8_mma::LaneRing<kType, int8_mma::kRingWarps<kType>, 2 * kSlots>,
                       int8_mma::LaneRing<kType, int8_mma::Weights<kType>::kWhole ? 6 : 8, kSlots>>>;
/// What a warp asks for next: its items are every kWarps-th, 16 rows each, piece by piece.
template <quant::Type kType, bool kGated, Fill kFill>
class Feed {
 public:
  using OwnRing = RingOf<kType, kFill>;
  static constexpr int kWarps = OwnRing::kWarps;

  /// slots: of the warp (lanes); barriers: of its slots (maps).
  __device__ Feed(const Args& p, const Tile* tiles, int begin, int end, const Ring<kType>& ring,
                  uint32_t slots, uint32_t barriers)
      : p_(p),
        tiles_(tiles),
        end_(end),
        all_quads_(p.weight.columns / kQuad),
        ring_(ring),
        warp_(warp_index()),
        at_(kFill == Fill::Maps ? barriers : slots) {
    next_ = begin + warp_, tile_ = p.across(next_), row_ = next_ - tile_ * p.across.by;
    if (next_ < end_) begin_item();
  }

  /// Asks for the next piece, into slot `slot`.
  __device__ __forceinline__ void ask(int slot) {
    if (next_ < end_) {
      if constexpr (kFill == Fill::Maps) {
        ring_.ask(p_.map, map_row_, piece_, supers_, all_quads_ / 2, warp_, slot,
                  at_ + 8 * static_cast<uint32_t>(slot));
        piece_ += Ring<kType>::kGroups, left_ -= kMostQuads;
      } else {
        OwnRing::ask(source_, min(left_, OwnRing::kQuads), piece_, all_quads_ / 2,
                     at_ + static_cast<uint32_t>(slot * OwnRing::kSlotBytes));
        ++piece_, left_ -= OwnRing::kQuads;
      }
      if (left_ <= 0) {
        next_ += kWarps;
        for (row_ += kWarps; row_ >= p_.across.by; row_ -= p_.across.by) ++tile_;
        if (next_ < end_) begin_item();
      }
    }
    if constexpr (kFill != Fill::Maps) commit_copies();
  }

 private:
  __device__ __forceinline__ void begin_item() {
    const int matrix = tiles_[tile_].expert;
    piece_ = 0, left_ = all_quads_;
    if constexpr (kFill == Fill::Maps) {
      map_row_ = uniform(matrix * static_cast<int>(p_.weight.matrix_rows) + row_ * (kGated ? 8 : 16));
      if constexpr (int8_mma::Weights<kType>::kSuper) {
        const int8_mma::SuperOfLane own;
        const Matrix& m = kGated && (own.h != 0) != p_.map.swapped ? p_.up : p_.weight;
        supers_ = int8_mma::SharedSupers<kType>::of_row(
            m, m.row(matrix, kGated ? row_ * 8 + own.g : row_ * 16 + own.g + 8 * own.h));
      }
    } else {
      const Matrix& second = kGated ? p_.up : p_.weight;
      source_ = OwnRing::source(p_.weight, p_.weight.row(matrix, row_ * (kGated ? 8 : 16)), second,
                                second.row(matrix, kGated ? row_ * 8 : row_ * 16 + 8));
    }
  }

  const Args& p_;
  const Tile* tiles_;
  int end_, all_quads_;
  int next_, tile_, row_, left_;  // left: quads of the item that is next
  int piece_ = 0, map_row_ = 0;   // piece: the next one of the item; maps: its line
  const Ring<kType>& ring_;
  int warp_;
  uint32_t at_;
  const uint8_t* supers_ = nullptr;  // of this lane's row (SuperOfLane)
  typename OwnRing::Source source_{};
};

/// Rows for the launch behind this one, a row a thread block: one warp packs it. Short code rather than fast:
/// it runs once.
__device__ __forceinline__ void pack_beside(const PackPlan& plan) {
  const int lane = static_cast<int>(threadIdx.x) % 32, chunks = plan.in.columns / kChunkColumns;
  for (int row = static_cast<int>(blockIdx.x); row < *plan.slots; row += static_cast<int>(gridDim.x)) {
    const auto* const from = reinterpret_cast<const float4*>(plan.in(row)) + lane;
    float largest = 0;
#pragma unroll 4
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const float4 v = from[chunk * 32];
      largest = fmaxf(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))), largest);
    }
    const PowerOfTwo scale = scale_for(lane_max(largest));
    if (lane == 0) plan.scale[row] = scale.inverse;
#pragma unroll 2
    for (int chunk = 0; chunk < chunks; ++chunk)
      write_pairs(plan, row, chunks, chunk, from[chunk * 32], scale.factor);
  }
}

template <quant::Type kType, int kNTiles, bool kGated, Fill kFill>
__device__ __forceinline__ void multiply_experts(const Timestamps& timestamps, const Args& p) {
  using OwnRing = RingOf<kType, kFill>;
  constexpr int kTokens = kNTiles * 8, kWarps = OwnRing::kWarps, kThreads = OwnRing::kThreads;
  constexpr bool kByMap = kFill == Fill::Maps;
  extern __shared__ __align__(128) char batch_shared[];
  __shared__ int16_t ids[kMostPairs];
  __shared__ int32_t count[kMostExperts];
  __shared__ Tile tiles[kMostTiles];
  __shared__ int32_t all_tiles;
  __shared__ __align__(8) uint64_t barriers[kByMap ? kWarps * kSlots : 1];
  __shared__ int32_t list[kMostBuffers][kMostTokens];  // pairs of the tiles at hand
  __shared__ int64_t place[kMostBuffers][kMostTokens];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index();
  const int experts = p.weight.matrices;
  const PdlLink pdl(timestamps);
  const int rows = *p.rows,
            pairs = rows * p.per_row.by;  // *p.rows: uploaded before the step's first kernel, no wait
  const uint32_t own_barriers = shared_address(barriers + (kByMap ? warp * kSlots : 0));
  if constexpr (kByMap) {
    if (threadIdx.x == 0) Ring<kType>::fetch(p.map);
    if (lane < kSlots)
      barrier_init(own_barriers + 8 * static_cast<uint32_t>(lane), Ring<kType>::kArrivals),
          barrier_init_fence();
  }
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) count[e] = 0;
  __syncthreads();
  // The selection may lie on the mailbox before all of it is done that is to be multiplied; of a dense matrix
  // there is none.
  const bool by_mailbox = p.selection.slots != nullptr, early = by_mailbox || p.ids.data == nullptr;
  if (!early) pdl.wait();

  // Experts' pairs are counted, and their tiles written down in the order of the experts.
  const uint32_t flag = by_mailbox ? p.selection.flag() : 0;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    const int r = p.per_row(i);
    const int id = by_mailbox              ? __float_as_int(take_slot(p.selection.slots + i, flag))
                   : p.ids.data == nullptr ? 0
                                           : load_result(p.ids(r) + (i - r * p.per_row.by));
    ids[i] = static_cast<int16_t>(id);
    atomicAdd(&count[id], 1);
  }
  __syncthreads();
  if (warp == 0) {
    int before = 0;
    for (int base = 0; base < experts; base += 32) {
      const int e = base + lane, own = e < experts ? (count[e] + kTokens - 1) / kTokens : 0;
      int sum = own;
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, sum, step);
        if (lane >= step) sum += other;
      }
      for (int i = 0; i < own; ++i)
        tiles[before + sum - own + i] = {static_cast<int16_t>(e), static_cast<int16_t>(i)};
      before += __shfl_sync(kWholeWarp, sum, 31);
    }
    if (lane == 0) all_tiles = before;
  }
  __syncthreads();
  const unsigned items = static_cast<unsigned>(all_tiles * p.across.by);
  const int begin = static_cast<int>(items * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  if (begin >= end) {
    if (early) pdl.wait();
    if (!kGated && p.beside.data != nullptr && warp == 0) pack_beside(p.beside);
    return;
  }

  const int all_quads = p.weight.columns / kQuad, last_tile = p.across(end - 1);
  const Ring<kType> ring(batch_shared, p.weight);
  const int own_slots = kByMap ? 0 : warp * OwnRing::kSlots * OwnRing::kSlotBytes;  // that lanes fill
  char* const tokens = batch_shared + OwnRing::kBytes;
  Feed<kType, kGated, kFill> feed(p, tiles, begin, end, ring, shared_address(batch_shared + own_slots),
                                  own_barriers);
  for (int slot = 0; slot < OwnRing::kSlots; ++slot) feed.ask(slot);

  // Pairs of the tiles from `first` on, a tile a warp, in the order of rows.
  const auto list_pairs = [&](int first, int here) {
    if (warp >= here) return;
    const Tile of = tiles[first + warp];
    int rank = -of.part * kTokens;  // of the next pair in the tile
    if (lane < kTokens) list[warp][lane] = -1;
    __syncwarp();
#pragma unroll 1
    for (int base = 0; base < pairs; base += 32) {
      const bool is = base + lane < pairs && ids[base + lane] == of.expert;
      const unsigned all = __ballot_sync(kWholeWarp, is);
      const int at = rank + __popc(all & ((1u << lane) - 1));
      if (is && at >= 0 && at < kTokens) {
        const int pair = base + lane, r = p.per_row(pair), k = pair - r * p.per_row.by;
        list[warp][at] = pair;
        place[warp][at] = r * p.out.row_stride + k * p.out.head_stride;
      }
      rank += __popc(all);
    }
  };
  const int first_tile = p.across(begin);
  list_pairs(first_tile, min(p.buffers, last_tile + 1 - first_tile));
  if (early) pdl.wait();

  const bool up_first = kGated && kByMap && p.map.swapped;
  int index = begin + warp, tile = p.across(index), row = index - tile * p.across.by, slot = 0;
  uint32_t phase = 0;  // of the barriers: a round of the slots
  for (int first = first_tile; first <= last_tile; first += p.buffers) {
    const int here = min(p.buffers, last_tile + 1 - first);
    if (first != first_tile) list_pairs(first, here);
    __syncthreads();
    if (p.coded != nullptr) {
      for (int token = warp; token < here * kTokens; token += kWarps) {
        const int pair = list[token / kTokens][token % kTokens];
        if (pair < 0) continue;
        const auto* const from =
            reinterpret_cast<const uint4*>(p.coded + int64_t{p.per_row(pair)} * p.token.pitch);
        auto* const to = reinterpret_cast<uint4*>(tokens + token * p.token.pitch);
#pragma unroll 5
        for (int i = lane; i < p.token.pitch / 16; i += 32) to[i] = __ldcg(from + i);
      }
    }
    constexpr int kAtOnce = 4;  // quads
    const int parts = (all_quads + kAtOnce - 1) / kAtOnce;
    const int tasks = p.coded != nullptr ? 0 : here * kTokens * parts;
    for (int task = warp; task < tasks; task += kWarps) {
      // Parts of the first token, then those of the second: tiles are rarely full.
      const int token = task / parts, part = task - token * parts;
      const int pair = list[token / kTokens][token % kTokens];
      if (pair < 0) continue;
      const int r = p.per_row(pair);
      const float* const from = p.in(r, p.by_pair != 0 ? pair - r * p.per_row.by : 0);
      char* const to = tokens + token * p.token.pitch;
      float4 x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = min(part * kAtOnce + i, all_quads - 1);
        x[i] = __ldcg(reinterpret_cast<const float4*>(from + quad * kQuad) + lane);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = min(part * kAtOnce + i, all_quads - 1);
        int8_mma::store_codes(x[i], to, p.token, quad);
      }
    }
    __syncthreads();
    // The last warp has the fewest items.
    if (!kGated && first == first_tile && warp == kWarps - 1 && p.beside.data != nullptr)
      pack_beside(p.beside);

    for (; index < end && tile < first + here; index += kWarps) {
      const int buffer = tile - first;
      float total[kNTiles][4] = {};
      int8_mma::TokensAt<> at(tokens + buffer * kTokens * p.token.pitch, p.token, 0);
      for (int left = all_quads; left > 0; left -= OwnRing::kQuads) {
        if constexpr (kByMap) {
          barrier_wait(own_barriers + 8 * static_cast<uint32_t>(slot), phase);
          const auto piece = ring.piece(warp, slot);
          int8_mma::multiply_pairs<kType>(piece, min(left, kMostQuads) / 2, at, p.token.pitch, total);
        } else {
          wait_copies<OwnRing::kSlots - 1>();
          __syncwarp();
          const auto piece = OwnRing::piece(batch_shared + own_slots + slot * OwnRing::kSlotBytes,
                                            (all_quads - left) / 2, all_quads / 2);
          if (int8_mma::Weights<kType>::kSuper || left > 1) {
            int8_mma::multiply_codes<kType, 2>(piece, at, p.token.pitch, total);
          } else {
            int8_mma::multiply_codes<kType, 1>(piece, at, p.token.pitch, total);
          }
          at.advance(2);
        }
        __syncwarp();
        feed.ask(slot);
        if (++slot == OwnRing::kSlots) slot = 0, phase ^= 1;
      }
#pragma unroll
      for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
        for (int j = 0; j < (kGated ? 2 : 4); ++j) {
          const int token = n * 8 + 2 * (lane % 4) + j % 2;
          float value = total[n][j];
          if constexpr (kGated) {
            const float up = up_first ? value : total[n][j + 2];
            value = silu(up_first ? total[n][j + 2] : value) * up;
          }
          if (list[buffer][token] >= 0)
            p.out.data[place[buffer][token] + row * (kGated ? 8 : 16) + lane / 4 + j / 2 * 8] = value;
        }
      }
      for (row += kWarps; row >= p.across.by; row -= p.across.by) ++tile;
    }
    if (first + p.buffers <= last_tile) __syncthreads();  // what the tiles had in shared memory is done with
  }
}

/// kFill: by TMA copies where it can be, which leave the path of shared memory's readers free.
template <quant::Type kType, int kNTiles, bool kGated, Fill kFill>
__global__ void __launch_bounds__(RingOf<kType, kFill>::kThreads, 1)
    experts_small_batch(const Timestamps timestamps, const __grid_constant__ Args p) {
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
  constexpr bool kHere = kFill != Fill::LanesOfSmall;
#else
  constexpr bool kHere = kFill == Fill::LanesOfSmall;
#endif
  if constexpr (kHere) multiply_experts<kType, kNTiles, kGated, kFill>(timestamps, p);
}

/// How multiply_experts_small_batch is launched: tokens of a tile, who fills the rings.
struct ExpertsLaunch {
  bool gated;
  Fill fill;
  int tokens;
  unsigned blocks;
};

/// Starts the kernel of a type. Those of 256 columns are always whole pairs of quads, which TMA copies take
/// if scales are whole 16 bytes, too.
template <quant::Type kType>
void start_experts(const ExpertsLaunch& how, const Args& args, const Context& context) {
  const auto start = [&]<int kNTiles, bool kGated, Fill kFill>() {
    using OwnRing = RingOf<kType, kFill>;
    launch(context, experts_small_batch<kType, kNTiles, kGated, kFill>,
           {dim3(how.blocks), dim3(OwnRing::kThreads),
            OwnRing::kBytes + int64_t{args.buffers} * how.tokens * args.token.pitch},
           args);
  };
  const auto with = [&]<Fill kFill>() {
    if (how.tokens <= 8) {
      return how.gated ? start.template operator()<1, true, kFill>()
                       : start.template operator()<1, false, kFill>();
    }
    return how.gated ? start.template operator()<2, true, kFill>()
                     : start.template operator()<2, false, kFill>();
  };
  if (how.fill == Fill::LanesOfSmall) return with.template operator()<Fill::LanesOfSmall>();
  using W = int8_mma::Weights<kType>;
  if constexpr (!W::kSuper || W::kFormat.scale == 1) {
    if (how.fill == Fill::Lanes) return with.template operator()<Fill::Lanes>();
  }
  with.template operator()<Fill::Maps>();
}

extern template void start_experts<quant::Type::Q4_0>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::Q4_K>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::Q5_0>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::Q5_K>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::Q6_K>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::Q8_0>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::IQ4_NL>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::IQ4_XS>(const ExpertsLaunch&, const Args&, const Context&);
extern template void start_experts<quant::Type::MXFP4>(const ExpertsLaunch&, const Args&, const Context&);

}  // namespace sluice::backend::cuda::experts
