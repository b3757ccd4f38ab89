// Products of experts' weights (Q4_0) with few tokens each, on matrix units of eight bits.
//
// What few tokens cost is reading weights: everything else has to hide behind that. So no launch goes before
// this one to order or to pack: every block of threads counts the step's pairs for itself, takes an equal
// stretch of all items (16 outputs, or 8 gates and their ups, times a tile of tokens) and makes its tiles'
// tokens codes of eight bits, 32 under a scale, in shared memory, or finds them coded. Its warps take items
// in turn. Each has its own ring of copies (tensor copies; cp.async where rows are no whole pairs of quads),
// and waits for nobody but where tiles change. Beside a down projection the last warps, which have the fewest
// items, pack what the launch behind multiplies. Gates and ups of up to 32 rows have kernels of their own
// (multiply_kept_rows), whose warps take items from all; of up to 8 rows they multiply the shared experts,
// too, while the routed ones' first weights are on their way.
//
// An element's sum depends on nothing but its weights and its token.
#include "backend/cuda/ops/experts_few.h"

#include <algorithm>
#include <type_traits>

#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/ops/select_few.cuh"
#include "backend/cuda/prim/board.cuh"
#include "backend/cuda/prim/few_bytes.cuh"
#include "backend/cuda/prim/few_gate_up.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/route.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/tensor_copy.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/tensor_map.h"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
using few::silu;
using few_bytes::kMostQuads, few_bytes::kQuad;
/// Of each warp's ring; a slot holds kMostQuads quads of 16 rows.
constexpr int kSlots = 2;
constexpr few_bytes::Slot kSlot = few_bytes::kWholeSlot;
/// Codes of a slot that tensor copies fill, a copy of two lines of twice eight rows; scales, another copy,
/// lie behind all codes.
constexpr int kMapGroups = kMostQuads * 64 / kMapLine;
constexpr int kMapSlot = kMapGroups * few_bytes::kRows * kMapLine;
constexpr int kMapScalePitch = kMostQuads * 8, kMapScales = few_bytes::kRows * kMapScalePitch;
constexpr int64_t rings_of(bool by_map) {
  return by_map ? int64_t{kWarps} * kSlots * (kMapSlot + kMapScales) + 1024
                : int64_t{kWarps} * kSlots * kSlot.bytes;
}
constexpr int kMostPairs = kMostSelected, kMostExperts = 256, kMostTokens = 16, kMostBuffers = 2;
constexpr int kMostTiles = kMostPairs / 8 + kMostExperts;
/// Shared memory of a block on compute capabilities 9.0 and 10.0, less what the kernel has by itself.
constexpr int64_t kShared = 227 * 1024 - 9 * 1024;

/// Division of numbers whose product with the divisor is below 2^32, by a multiplication: a division is some
/// 40 instructions, and blocks of threads begin with several.
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
  few_bytes::TokenRows token;
  const char* coded;  ///< or null: rows are made codes here
  Board selection;    ///< experts of pairs, put there or, without a router, taken from there; or null
  PackPlan beside;    ///< or none: data null
};

/// A tile of tokens in the step's order: an expert's pairs from the part-th 8 (or 16) on.
struct Tile {
  int16_t expert, part;
};

/// Asks for a piece: an item's 16 rows from row `row` of a stretch on, from `line` of 128 bytes on.
__device__ __forceinline__ void ask_piece(const RowPairs& map, int row, int line, uint32_t codes,
                                          uint32_t scales, uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  barrier_expect(barrier, kMapSlot + kMapScales);
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %2, %4}], [%5];" ::"r"(codes),
      "l"(&map.codes), "r"(0), "r"(row), "r"(line), "r"(barrier)
      : "memory");
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(scales),
      "l"(&map.scales), "r"(line * (kMapScalePitch / kMapGroups)), "r"(row), "r"(0), "r"(barrier)
      : "memory");
#endif
}

/// What a warp asks for next: its items are every kWarps-th, 16 rows each, piece by piece. Pointers go on
/// from piece to piece, each lane's to its 16 bytes of codes of two rows and of scales of one.
template <bool kGated, bool kByMap>
class Feed {
 public:
  /// codes, scales: of the warp's first slot; barriers: of its slots.
  __device__ Feed(const Args& p, const Tile* tiles, int begin, int end, uint32_t codes, uint32_t scales,
                  uint32_t barriers)
      : p_(p), tiles_(tiles), end_(end), all_quads_(p.weight.columns / kQuad), barriers_(barriers) {
    const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index();
    codes_to_ = codes, scales_to_ = scales;
    if constexpr (!kByMap) {
      codes_to_ += static_cast<uint32_t>(lane / 16 * kSlot.code_pitch + lane % 16 * 16);
      scales_to_ += static_cast<uint32_t>(lane / 2 * kSlot.scale_pitch + lane % 2 * 16);
    }
    two_rows_ = all_quads_ * 128;
    next_ = begin + warp, tile_ = p.across(next_), row_ = next_ - tile_ * p.across.by;
    if (next_ < end_) begin_item();
  }

  /// Asks for the next piece, into slot `slot`.
  __device__ __forceinline__ void ask(int slot) {
    if (next_ < end_) {
      const uint32_t codes_to = codes_to_ + static_cast<uint32_t>(slot * (kByMap ? kMapSlot : kSlot.bytes));
      const uint32_t scales_to =
          scales_to_ + static_cast<uint32_t>(slot * (kByMap ? kMapScales : kSlot.bytes));
      if constexpr (kByMap) {
        if (is_elected())
          ask_piece(p_.map, map_row_, line_, codes_to, scales_to,
                    barriers_ + 8 * static_cast<uint32_t>(slot));
        line_ += kMapGroups;
      } else if (left_ >= kMostQuads) {
        copy_rows(codes_to);
        copy_scales(scales_to, kMostQuads);
        codes_[0] += 64 * kMostQuads, codes_[1] += 64 * kMostQuads, scales_ += 8 * kMostQuads;
      } else {
        if (static_cast<int>(threadIdx.x) % 16 < 4 * left_) copy_rows(codes_to);
        copy_scales(scales_to, left_);
      }
      left_ -= kMostQuads;
      if (left_ <= 0) {
        next_ += kWarps;
        for (row_ += kWarps; row_ >= p_.across.by; row_ -= p_.across.by) ++tile_;
        if (next_ < end_) begin_item();
      }
    }
    if constexpr (!kByMap) commit_copies();
  }

 private:
  /// Two rows an instruction, 256 bytes of each: whole lines.
  __device__ __forceinline__ void copy_rows(uint32_t to) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int j = 0; j < few_bytes::kRows / 4; ++j)
        few_bytes::copy_codes(to + (8 * h + 2 * j) * kSlot.code_pitch, codes_[h] + j * two_rows_);
    }
  }
  /// A lane's two quads of a row's scales; those of an odd number of quads begin at odd multiples of 8 bytes.
  __device__ __forceinline__ void copy_scales(uint32_t to, int quads) const {
    const int first = static_cast<int>(threadIdx.x) % 2 * 2;
    if (quads == kMostQuads && all_quads_ % 2 == 0) return few_bytes::copy_codes(to, scales_);
    if (first < quads) few_bytes::copy_scales(to, scales_);
    if (first + 1 < quads) few_bytes::copy_scales(to + 8, scales_ + 8);
  }
  __device__ __forceinline__ void begin_item() {
    const int lane = static_cast<int>(threadIdx.x) % 32, matrix = tiles_[tile_].expert;
    if constexpr (kByMap) {
      line_ = 0;
      map_row_ = uniform(matrix * static_cast<int>(p_.weight.matrix_rows) + row_ * (kGated ? 8 : 16));
    } else {
      const auto quad_of = [&](int row) {  // row: of the item's 16
        const Matrix& m = kGated && row >= 8 ? p_.up : p_.weight;
        return m.row(matrix, kGated ? row_ * 8 + row % 8 : row_ * 16 + row) * all_quads_;
      };
      const Matrix& second = kGated ? p_.up : p_.weight;
      codes_[0] = p_.weight.codes + quad_of(lane / 16) * 64 + lane % 16 * 16;
      codes_[1] = second.codes + quad_of(8 + lane / 16) * 64 + lane % 16 * 16;
      scales_ = (lane < 16 ? p_.weight : second).scale + quad_of(lane / 2) * 8 + lane % 2 * 16;
    }
    left_ = all_quads_;
  }

  const Args& p_;
  const Tile* tiles_;
  int end_, all_quads_;
  int two_rows_;                  // bytes
  int next_, tile_, row_, left_;  // left: quads of the item that is next
  const uint8_t *codes_[2], *scales_;
  int line_, map_row_;
  uint32_t codes_to_, scales_to_, barriers_;
};

/// Rows for the launch behind this one, a row a block of threads: one warp packs it. Short code rather than
/// fast: it runs once.
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

/// kByMap: codes come by tensor copies, which leave the path of shared memory's readers free.
template <int kStrips, bool kGated, bool kByMap>
__global__ void __launch_bounds__(kThreads, 1)
    experts_few(const Stamps stamps, const __grid_constant__ Args p) {
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
  constexpr int kTokens = kStrips * 8;
  constexpr few_bytes::Slot layout = kSlot;
  extern __shared__ __align__(128) char few_shared[];
  __shared__ int16_t ids[kMostPairs];
  __shared__ int32_t count[kMostExperts];
  __shared__ Tile tiles[kMostTiles];
  __shared__ int32_t all_tiles;
  __shared__ __align__(8) uint64_t barriers[kByMap ? kWarps * kSlots : 1];
  __shared__ int32_t list[kMostBuffers][kMostTokens];  // pairs of the tiles at hand
  __shared__ int64_t place[kMostBuffers][kMostTokens];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index();
  const int experts = p.weight.matrices;
  const Link link(stamps);
  const int rows = *p.rows,
            pairs = rows * p.per_row.by;  // *p.rows was there before the step's first kernel began
  const uint32_t own_barriers = shared_address(barriers + (kByMap ? warp * kSlots : 0));
  if constexpr (kByMap) {
    if (threadIdx.x == 0) fetch_map(p.map.codes), fetch_map(p.map.scales);
    if (lane < kSlots) barrier_init(own_barriers + 8 * static_cast<uint32_t>(lane), 1), barrier_init_fence();
  }
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) count[e] = 0;
  __syncthreads();
  // The selection may lie on the board before all of it is done that is to be multiplied.
  const bool early = p.selection.words != nullptr;
  if (!early) link.wait();

  // Experts' pairs are counted, and their tiles written down in the order of the experts.
  const uint32_t tag = early ? p.selection.tag() : 0;
  for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
    const int r = p.per_row(i);
    const int id = early ? __float_as_int(take_word(p.selection.words + kSelectionBoard + i, tag))
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
    if (early) link.wait();
    if (!kGated && p.beside.data != nullptr && warp == 0) pack_beside(p.beside);
    return;
  }

  const int all_quads = p.weight.columns / kQuad, last_tile = p.across(end - 1);
  char* const rings = kByMap ? few_shared + (1024 - shared_address(few_shared) % 1024) % 1024 : few_shared;
  constexpr int kCodesApart = kByMap ? kMapSlot : kSlot.bytes;
  constexpr int kScalesApart = kByMap ? kMapScales : kSlot.bytes;
  char* const own_codes = rings + warp * kSlots * kCodesApart;
  char* const own_scales =
      (kByMap ? rings + kWarps * kSlots * kCodesApart : rings + few_bytes::kRows * kSlot.code_pitch) +
      warp * kSlots * kScalesApart;
  char* const tokens = few_shared + rings_of(kByMap);
  Feed<kGated, kByMap> feed(p, tiles, begin, end, shared_address(own_codes), shared_address(own_scales),
                            own_barriers);
  for (int slot = 0; slot < kSlots; ++slot) feed.ask(slot);

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
  if (early) link.wait();

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
        few_bytes::store_codes(x[i], 1.0f, to + quad * kQuad,
                               reinterpret_cast<float*>(to + p.token.scales) + quad * 4);
      }
    }
    __syncthreads();
    // The last warp has the fewest items.
    if (!kGated && first == first_tile && warp == kWarps - 1 && p.beside.data != nullptr)
      pack_beside(p.beside);

    for (; index < end && tile < first + here; index += kWarps) {
      const int buffer = tile - first;
      float total[kStrips][4] = {};
      few_bytes::TokensAt at(tokens + buffer * kTokens * p.token.pitch, p.token, 0);
      for (int left = all_quads; left > 0; left -= kMostQuads) {
        if constexpr (!kByMap) {
          wait_copies<kSlots - 1>();
          __syncwarp();
        }
        const char* const of = own_codes + slot * kCodesApart;
        if constexpr (kByMap) {
          barrier_wait(own_barriers + 8 * static_cast<uint32_t>(slot), phase);
          const few_bytes::SwizzledCodes<kMapRows * kMapLine, few_bytes::kRows * kMapLine> codes(
              shared_address(of));
          const char* const scales = own_scales + slot * kScalesApart + lane / 4 * kMapScalePitch;
          const auto multiply = [&]<int kQuads>() {
            few_bytes::multiply_codes<kQuads>(codes, scales, kMapScalePitch, at, p.token.pitch, total);
          };
          left >= kMostQuads ? multiply.template operator()<kMostQuads>()
                             : multiply.template operator()<kMostQuads / 2>();
        } else if (left >= kMostQuads) {
          few_bytes::multiply_quads<kMostQuads>(of, layout, at, p.token.pitch, total);
        } else {
          few_bytes::multiply(of, layout, left, at, p.token.pitch, total);
        }
        at.codes += kMostQuads * kQuad, at.scales += kMostQuads * 16;
        __syncwarp();
        feed.ask(slot);
        if (++slot == kSlots) slot = 0, phase ^= 1;
      }
#pragma unroll
      for (int n = 0; n < kStrips; ++n) {
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
#endif
}

// --- few rows, coded: every block of threads keeps them all, so that a warp may take any item ---

constexpr int kRowsKept = 32, kPairsKept = 256, kTilesKept = 128;
static_assert(kPairsKept <= kPackedPairs);

struct KeptArgs {
  RowPairs map;
  Matrix weight;
  Rows<float> out;
  const int32_t* rows;
  Divisor per_row, across;  ///< experts of a row, items of a tile
  few_bytes::TokenRows token;
  const char* coded;
  Board selection;
  unsigned* taken;
};

/// In the place of few::GateUpItems.
struct NoSharedExperts {};

/// Gates and ups. Items go to whichever warp is free: multiprocessors do not get their weights equally fast.
/// 19 MB are asked for at once and come all at once, 5 us later, and whatever is asked for behind them comes
/// later still. So with shared experts all else is asked for first, and they are multiplied until the first
/// pieces come. Every block of threads selects for itself then (selection): a trip over the board less.
template <typename Shared>
__device__ __forceinline__ void multiply_kept_rows(const KeptArgs& p, const Link& link, Shared shared,
                                                   const RowSelection* selection) {
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
  constexpr int kTokens = 8;
  constexpr bool kShared = !std::is_same_v<Shared, NoSharedExperts>;
  extern __shared__ __align__(128) char few_shared[];
  __shared__ int32_t count[kMostExperts];
  __shared__ int16_t first_tile[kMostExperts], tiles[kTilesKept];  // an expert's first tile, a tile's expert
  __shared__ __align__(16) int16_t list[kTilesKept][kTokens];      // a tile's tokens: their rows
  __shared__ int32_t place[kTilesKept][kTokens];                   // where their results go
  __shared__ int16_t ids[kPairsKept];
  __shared__ int32_t all_tiles;
  __shared__ __align__(8) uint64_t barriers[kWarps * kSlots];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index();
  const int rows = *p.rows,
            pairs = rows * p.per_row.by;  // *p.rows was there before the step's first kernel began
  const uint32_t tag = p.selection.tag();
  const uint32_t own_barriers = shared_address(barriers + warp * kSlots);
  [[maybe_unused]] float bias = 0;  // of expert threadIdx.x
  if constexpr (kShared) {
    if (selection->bias != nullptr && static_cast<int>(threadIdx.x) < selection->rule.experts)
      bias = __ldg(selection->bias + threadIdx.x);
    shared.ask_weights();
  }
  if (threadIdx.x == 0) fetch_map(p.map.codes), fetch_map(p.map.scales);
  if (lane < kSlots) barrier_init(own_barriers + 8 * static_cast<uint32_t>(lane), 1), barrier_init_fence();
  for (int i = static_cast<int>(threadIdx.x); i < kMostExperts; i += kThreads) count[i] = 0;
  if (threadIdx.x < kTilesKept) *reinterpret_cast<uint4*>(list[threadIdx.x]) = {~0u, ~0u, ~0u, ~0u};
  [[maybe_unused]] __shared__ float biases[kShared ? kMostExperts : 1];
  if constexpr (kShared) {
    if (threadIdx.x < kMostExperts) biases[threadIdx.x] = bias;
  }
  __syncthreads();

  // A thread has a pair: its place among its expert's.
  int pair = static_cast<int>(threadIdx.x), id = 0, rank = 0;
  if constexpr (kShared) {
    pair = warp < rows && lane < p.per_row.by ? warp * p.per_row.by + lane : pairs;
    if (warp < rows) id = select_row(*selection, warp, biases, tag, blockIdx.x == 0);
    if (warp == kWarps - 1 && lane < rows) take_word<true>(p.selection.words + kPackedBoard + lane, tag);
  } else {
    if (pair < pairs) id = __float_as_int(take_word(p.selection.words + kSelectionBoard + pair, tag));
  }
  if (pair < pairs) rank = atomicAdd(&count[id], 1), ids[pair] = static_cast<int16_t>(id);
  __syncthreads();
  char* const rings = few_shared + (1024 - shared_address(few_shared) % 1024) % 1024;
  char* const tokens = few_shared + rings_of(true);
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
    const int tile = first_tile[id] + rank / kTokens, r = p.per_row(pair);
    list[tile][rank % kTokens] = static_cast<int16_t>(r);
    place[tile][rank % kTokens] =
        static_cast<int32_t>(r * p.out.row_stride + (pair - r * p.per_row.by) * p.out.head_stride);
  }

  // Items: what is asked for next, and what comes behind it.
  const int items = all_tiles * p.across.by, all_quads = p.weight.columns / kQuad;
  const auto codes_of = [&](int slot) { return rings + (warp * kSlots + slot) * kMapSlot; };
  const auto scales_of = [&](int slot) {
    return rings + kWarps * kSlots * kMapSlot + (warp * kSlots + slot) * kMapScales;
  };
  int tile = 0, row = 0, left = 0, line = 0, map_row = 0;
  unsigned next = 0;
  const auto begin_item = [&](int item) {
    tile = p.across(item), row = (item - tile * p.across.by) * 8;
    map_row = uniform(tiles[tile] * static_cast<int>(p.weight.matrix_rows) + row);
    line = 0, left = all_quads;
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
    if (is_elected())
      ask_piece(p.map, map_row, line, shared_address(codes_of(slot)), shared_address(scales_of(slot)),
                own_barriers + 8 * static_cast<uint32_t>(slot));
    line += kMapGroups, left -= kMostQuads;
  };
  if (item < items) begin_item(item);
  ask(0);
  if constexpr (kShared) {
    __shared__ float meeting[Shared::kMeetingFloats];
    ask(1);
    take_item();
    shared.multiply(meeting);
    link.wait();
    wait_copies<0>();
    __syncthreads();
    shared.store(meeting, rows);
  } else {
    // Tokens come before a second round of weights.
    link.wait();
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
    const int32_t* const to = place[tile];
    const int first_output = row;
    const auto row_of = [&](int token) { return max(int{of_tile[token]}, 0); };
    few_bytes::TokensAt at(tokens, p.token, 0, row_of);
    float total[1][4] = {};
    for (int to_do = all_quads; to_do > 0; to_do -= kMostQuads) {
      barrier_wait(own_barriers + 8 * static_cast<uint32_t>(slot), phase);
      const few_bytes::SwizzledCodes<kMapRows * kMapLine, few_bytes::kRows * kMapLine> codes(
          shared_address(codes_of(slot)));
      const char* const scales = scales_of(slot) + lane / 4 * kMapScalePitch;
      if (to_do >= kMostQuads) {
        few_bytes::multiply_codes<kMostQuads>(codes, scales, kMapScalePitch, at, 0, total);
      } else {
        few_bytes::multiply_codes<kMostQuads / 2>(codes, scales, kMapScalePitch, at, 0, total);
      }
      at.codes += kMostQuads * kQuad, at.scales += kMostQuads * 16;
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
      if (of_tile[token] >= 0) p.out.data[to[token] + first_output + lane / 4] = silu(gate) * up;
    }
  }
#endif
}

__global__ void __launch_bounds__(kThreads, 1)
    experts_of_kept_rows(const Stamps stamps, const __grid_constant__ KeptArgs p) {
  const Link link(stamps);
  multiply_kept_rows(p, link, NoSharedExperts{}, nullptr);
}

template <quant::Type kType>
__global__ void __launch_bounds__(kThreads, 1)
    experts_of_kept_rows_and_shared(const Stamps stamps, const __grid_constant__ KeptArgs p,
                                    const __grid_constant__ SelectAndShared more) {
  const Link link(stamps);
  multiply_kept_rows(p, link, few::GateUpItems<kType>(more.shared), &more.selection);
}

/// Tokens of a tile: about twice what an expert has on average, so that hardly any expert needs two.
int tokens_for(int64_t pairs, int64_t experts) {
  const int64_t average = (pairs + experts - 1) / experts;
  return average <= 4 ? 8 : average <= 12 ? 16 : 0;
}

/// Whether rows are whole pairs of quads, which is what tensor copies take.
bool by_map(const ExpertsShape& shape) { return shape.columns % (2 * kQuad) == 0; }

/// Whether every block of threads has room for all rows and their lists.
bool keeps_rows(const ExpertsShape& shape, int64_t rows) {
  const int64_t pairs = rows * shape.used;
  if (!by_map(shape) || tokens_for(pairs, shape.experts) > 8) return false;
  const int64_t token = few_bytes::TokenRows::of(static_cast<int>(shape.columns / kQuad)).pitch;
  return shape.gated && rows <= kRowsKept && pairs <= kPairsKept &&
         std::min(pairs, pairs / 8 + shape.experts) <= kTilesKept && shape.columns > kMostQuads * kQuad &&
         rings_of(true) + rows * token <= kShared;
}

/// The launch's sizes; false: something does not fit.
bool plan(const ExpertsShape& shape, int tokens, Args& args) {
  const auto quads = static_cast<int>(shape.columns / kQuad);
  args.across = Divisor::of(
      static_cast<int32_t>(shape.outputs / (shape.gated ? few_bytes::kRows / 2 : few_bytes::kRows)));
  args.per_row = Divisor::of(static_cast<int32_t>(shape.used));
  args.token = few_bytes::TokenRows::of(quads);
  const int64_t tile = int64_t{tokens} * args.token.pitch;
  const int64_t rings = rings_of(by_map(shape));
  args.buffers = rings + kMostBuffers * tile <= kShared ? kMostBuffers : 1;
  const int64_t most = int64_t{kMostTiles} * args.across.by * args.across.by;  // that Divisor sees
  return rings + args.buffers * tile <= kShared && most < int64_t{1} << 32;
}

}  // namespace

bool serves_experts_few(const ExpertsShape& shape, int64_t rows, int architecture) {
  const int64_t pairs = rows * shape.used;
  const int tokens = tokens_for(pairs, shape.experts);
  if (shape.type != quant::Type::Q4_0 || (architecture != 90 && architecture != 100) || rows < 2)
    return false;
  if (shape.columns % kQuad != 0 || shape.outputs % (shape.gated ? 8 : 16) != 0) return false;
  if (pairs > kMostPairs || shape.experts > kMostExperts || tokens == 0) return false;
  Args args{};
  return plan(shape, tokens, args);
}

bool takes_shared_experts(const ExpertsShape& shape, const Matrix& gate, const Matrix& up, int64_t rows,
                          int processors) {
  return keeps_rows(shape, rows) && gate.type == up.type &&
         few::serves_gate_up(gate.type, gate.rows, gate.columns, rows, processors);
}

void multiply_experts_few(const ExpertsFew& product, const Context& context) {
  const Matrix& weight = product.weight;
  const ExpertsShape shape{weight.type,    weight.matrices,     weight.rows,
                           weight.columns, product.ids.columns, product.gated};
  const int64_t pairs = context.step_rows * shape.used;
  const int tokens = tokens_for(pairs, shape.experts);
  Args args{};
  plan(shape, tokens, args);
  args.weight = weight, args.up = product.up;
  args.in = product.in, args.out = product.out, args.ids = product.ids, args.rows = product.rows;
  args.by_pair = product.by_pair ? 1 : 0;
  args.selection = product.selection, args.coded = product.coded, args.beside = product.beside;
  const bool mapped = by_map(shape);
  if (mapped)
    args.map =
        product.gated ? map_row_pairs(weight, product.up, kMapGroups) : map_row_pairs(weight, kMapGroups);
  if (keeps_rows(shape, context.step_rows) && product.taken != nullptr) {
    const LaunchShape of_kept{dim3(static_cast<unsigned>(context.processors)), dim3(kThreads),
                              rings_of(true) + context.step_rows * args.token.pitch};
    const KeptArgs kept{args.map,    weight,     product.out,   product.rows,      args.per_row,
                        args.across, args.token, product.coded, product.selection, product.taken};
    if (product.select_and_shared == nullptr) return launch(context, experts_of_kept_rows, of_kept, kept);
    return launch(context,
                  product.select_and_shared->shared.gate.type == quant::Type::Q5_K
                      ? experts_of_kept_rows_and_shared<quant::Type::Q5_K>
                      : experts_of_kept_rows_and_shared<quant::Type::Q4_0>,
                  of_kept, kept, *product.select_and_shared);
  }
  const auto with = [&]<int kStrips, bool kByMap>() {
    return product.gated ? experts_few<kStrips, true, kByMap> : experts_few<kStrips, false, kByMap>;
  };
  const auto kernel =
      tokens <= 8 ? (mapped ? with.template operator()<1, true>() : with.template operator()<1, false>())
                  : (mapped ? with.template operator()<2, true>() : with.template operator()<2, false>());
  const int64_t shared = rings_of(mapped) + int64_t{args.buffers} * tokens * args.token.pitch;
  const int64_t items = (pairs / tokens + std::min<int64_t>(shape.experts, pairs)) * args.across.by;
  launch(context, kernel,
         {dim3(static_cast<unsigned>(std::min<int64_t>(context.processors, items))), dim3(kThreads), shared},
         args);
}

}  // namespace sluice::backend::cuda
