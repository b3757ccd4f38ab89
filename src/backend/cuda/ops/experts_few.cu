// Products of experts' weights (Q4_0) with few tokens each, on matrix units of eight bits.
//
// What few tokens cost is reading weights: everything else has to hide behind that. So no launch goes before
// this one to order or to pack: every block of threads counts the step's pairs for itself, takes an equal
// stretch of all items (16 outputs, or 8 gates and their ups, times a tile of tokens) and makes its tiles'
// tokens codes of eight bits, 32 under a scale, in shared memory. Its warps take items in turn. Each has its
// own ring of copies (cp.async), and waits for nobody but where tiles change.
//
// An element's sum depends on nothing but its weights and its token.
#include "backend/cuda/ops/experts_few.h"

#include <algorithm>

#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/prim/few_bytes.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/route.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/tiles_mma.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
using few_bytes::kMostQuads, few_bytes::kQuad;
constexpr int kMostSlots = 8;
constexpr int kMostPairs = 1024, kMostExperts = 256, kMostTokens = 16, kMostBuffers = 2;
constexpr int kMostTiles = kMostPairs / 8 + kMostExperts;
/// Shared memory of a block on compute capabilities 9.0 and 10.0, less what the kernel has by itself.
constexpr int64_t kShared = 227 * 1024 - 9 * 1024;

struct Args {
  Matrix weight, up;
  Rows<float> in, out;
  Rows<int32_t> ids;
  const int32_t* rows;
  int32_t used, by_pair;
  int32_t across;   ///< items of a tile
  int32_t pieces;   ///< of an item: kMostQuads quads each, the last one less
  int32_t slots;    ///< of each warp's ring, a piece each
  int32_t buffers;  ///< tiles of tokens that there is room for
  few_bytes::Slot slot;
  few_bytes::TokenRows token;
  Routing routing;
};

/// A tile of tokens in the step's order: an expert's pairs from the part-th 8 (or 16) on.
struct Tile {
  int16_t expert, part;
};

/// Until all but the last slots - 1 groups of copies are there.
__device__ __forceinline__ void wait_for_oldest(int slots) {
  switch (slots) {
    case 2: return wait_copies<1>();
    case 3: return wait_copies<2>();
    case 4: return wait_copies<3>();
    case 5: return wait_copies<4>();
    case 6: return wait_copies<5>();
    case 7: return wait_copies<6>();
    default: return wait_copies<7>();
  }
}

template <int kStrips, bool kGated, bool kRoutes>
__global__ void __launch_bounds__(kThreads, 1)
    experts_few(const Stamps stamps, const __grid_constant__ Args p) {
  constexpr int kTokens = kStrips * 8;
  extern __shared__ __align__(128) char few_shared[];
  __shared__ int16_t ids[kMostPairs];
  __shared__ int32_t count[kMostExperts];
  __shared__ Tile tiles[kMostTiles];
  __shared__ int32_t all_tiles;
  __shared__ int32_t list[kMostBuffers][kMostTokens];  // pairs of the tiles at hand
  __shared__ int64_t place[kMostBuffers][kMostTokens];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int experts = p.weight.matrices;
  const Link link(stamps);
  __shared__ float bias[kRoutes ? kMostExperts : 1];
  for (int e = static_cast<int>(threadIdx.x); e < experts; e += kThreads) {
    count[e] = 0;
    if (kRoutes && p.routing.bias != nullptr) bias[e] = __ldg(p.routing.bias + e);
  }
  __syncthreads();
  link.wait();

  // Experts' pairs are counted, and their tiles written down in the order of the experts.
  const int rows = *p.rows, pairs = rows * p.used;
  if constexpr (kRoutes) {
    with_experts_of_lane(experts, [&]<int kEach>() {
#pragma unroll 1
      for (int r = warp; r < rows; r += kWarps) {
        float scores[kEach];
#pragma unroll
        for (int i = 0; i < kEach; ++i)
          scores[i] = load_result(p.routing.logits + r * experts + min(lane + 32 * i, experts - 1));
        int id = 0;
        float weight = 0;
        route_lanes(p.routing.rule, scores, p.routing.bias != nullptr ? bias : nullptr, id, weight);
        if (lane >= p.used) continue;
        ids[r * p.used + lane] = static_cast<int16_t>(id);
        atomicAdd(&count[id], 1);
        if (blockIdx.x == 0) p.ids(r)[lane] = id, p.routing.weights(r)[lane] = weight;
      }
    });
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < pairs; i += kThreads) {
      const int r = i / p.used, id = load_result(p.ids(r) + (i - r * p.used));
      ids[i] = static_cast<int16_t>(id);
      atomicAdd(&count[id], 1);
    }
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
  const int64_t items = int64_t{all_tiles} * p.across;
  const int begin = static_cast<int>(items * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(items * (blockIdx.x + 1) / gridDim.x);
  if (begin >= end) return;

  const int all_quads = p.weight.columns / kQuad, last_tile = (end - 1) / p.across;
  char* const own_slots = few_shared + warp * p.slots * p.slot.bytes;
  char* const tokens = few_shared + kWarps * p.slots * p.slot.bytes;

  // What this warp asks for next: the warps take items in turn, piece by piece.
  int next = begin + warp, next_tile = next / p.across, next_row = next % p.across, next_piece = 0;
  const auto ask = [&](int slot) {
    if (next < end) {
      const int matrix = tiles[next_tile].expert, first = next_piece * kMostQuads;
      const uint32_t to = shared_address(own_slots + slot * p.slot.bytes);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const Matrix& m = kGated && h == 1 ? p.up : p.weight;
        const int row =
            static_cast<int>(m.row(matrix, next_row * (kGated ? 8 : 16) + (kGated ? 0 : 8 * h) + lane / 4));
        few_bytes::ask_rows(m, row, all_quads, first, min(kMostQuads, all_quads - first), h, p.slot, to);
      }
      if (++next_piece == p.pieces) {
        next_piece = 0, next += kWarps;
        for (next_row += kWarps; next_row >= p.across; next_row -= p.across) ++next_tile;
      }
    }
    commit_copies();
  };
  for (int slot = 0; slot < p.slots; ++slot) ask(slot);

  int index = begin + warp, tile = index / p.across, row = index % p.across, slot = 0;
  for (int first = begin / p.across; first <= last_tile; first += p.buffers) {
    const int here = min(p.buffers, last_tile + 1 - first);
    // Their pairs, in the order of rows; then their codes.
    if (warp < here) {
      const Tile of = tiles[first + warp];
      int rank = -of.part * kTokens;  // of the next pair in the tile
      if (lane < kTokens) list[warp][lane] = -1;
      __syncwarp();
      for (int base = 0; base < pairs; base += 32) {
        const bool is = base + lane < pairs && ids[base + lane] == of.expert;
        const unsigned all = __ballot_sync(kWholeWarp, is);
        const int at = rank + __popc(all & ((1u << lane) - 1));
        if (is && at >= 0 && at < kTokens) {
          const int pair = base + lane, r = pair / p.used, k = pair - r * p.used;
          list[warp][at] = pair;
          place[warp][at] = r * p.out.row_stride + k * p.out.head_stride;
        }
        rank += __popc(all);
      }
    }
    __syncthreads();
    constexpr int kAtOnce = 4;  // quads
    const int parts = (all_quads + kAtOnce - 1) / kAtOnce;
    for (int task = warp; task < here * kTokens * parts; task += kWarps) {
      // Parts of the first token, then those of the second: tiles are rarely full.
      const int token = task / parts, part = task - token * parts;
      const int pair = list[token / kTokens][token % kTokens];
      if (pair < 0) continue;
      const int r = pair / p.used;
      const float* const from = p.in(r, p.by_pair != 0 ? pair - r * p.used : 0);
      char* const to = tokens + token * p.token.pitch;
      float4 x[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = min(part * kAtOnce + i, all_quads - 1);
        x[i] = __ldcg(reinterpret_cast<const float4*>(from + quad * kQuad) + lane);
      }
      float factor = 1;
      if constexpr (kRoutes) {
        factor = load_result(p.routing.inverse + r);
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int quad = min(part * kAtOnce + i, all_quads - 1);
          const float4 by = __ldg(reinterpret_cast<const float4*>(p.routing.norm + quad * kQuad) + lane);
          x[i].x *= by.x, x[i].y *= by.y, x[i].z *= by.z, x[i].w *= by.w;
        }
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int quad = min(part * kAtOnce + i, all_quads - 1);
        few_bytes::store_codes(x[i], factor, to + quad * kQuad,
                               reinterpret_cast<float*>(to + p.token.scales) + quad * 4);
      }
    }
    __syncthreads();

    for (; index < end && tile < first + here; index += kWarps) {
      const int buffer = tile - first;
      float total[kStrips][4] = {};
      for (int piece = 0; piece < p.pieces; ++piece) {
        wait_for_oldest(p.slots);
        __syncwarp();
        const int first_quad = piece * kMostQuads;
        few_bytes::multiply(own_slots + slot * p.slot.bytes, p.slot, min(kMostQuads, all_quads - first_quad),
                            tokens + buffer * kTokens * p.token.pitch, p.token, first_quad, total);
        __syncwarp();
        ask(slot);
        if (++slot == p.slots) slot = 0;
      }
#pragma unroll
      for (int n = 0; n < kStrips; ++n) {
#pragma unroll
        for (int j = 0; j < (kGated ? 2 : 4); ++j) {
          const int token = n * 8 + 2 * (lane % 4) + j % 2;
          float value = total[n][j];
          if constexpr (kGated) value = tiles::silu(value) * total[n][j + 2];
          if (list[buffer][token] >= 0)
            p.out.data[place[buffer][token] + row * (kGated ? 8 : 16) + lane / 4 + j / 2 * 8] = value;
        }
      }
      for (row += kWarps; row >= p.across; row -= p.across) ++tile;
    }
    if (first + p.buffers <= last_tile) __syncthreads();  // what the tiles had in shared memory is done with
  }
}

/// Tokens of a tile: about twice what an expert has on average, so that hardly any expert needs two.
int tokens_for(int64_t pairs, int64_t experts) {
  const int64_t average = (pairs + experts - 1) / experts;
  return average <= 4 ? 8 : average <= 12 ? 16 : 0;
}

/// The launch's sizes; false: something does not fit.
bool plan(const ExpertsShape& shape, int tokens, Args& args) {
  const auto quads = static_cast<int>(shape.columns / kQuad);
  args.across = static_cast<int32_t>(shape.outputs / (shape.gated ? few_bytes::kRows / 2 : few_bytes::kRows));
  args.pieces = (quads + kMostQuads - 1) / kMostQuads;
  args.slot = few_bytes::Slot::of(std::min(quads, kMostQuads)), args.token = few_bytes::TokenRows::of(quads);
  const int64_t tile = int64_t{tokens} * args.token.pitch;
  const int64_t ring = int64_t{kWarps} * args.slot.bytes;
  args.buffers = kMostBuffers;
  if (2 * ring + args.buffers * tile > kShared) args.buffers = 1;
  args.slots = static_cast<int32_t>(std::min<int64_t>(kMostSlots, (kShared - args.buffers * tile) / ring));
  return args.slots >= 2;
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
  args.used = product.ids.columns, args.by_pair = product.by_pair ? 1 : 0;
  args.routing = product.routing;
  const bool routes = product.routing.logits != nullptr;
  const auto with_strips = [&]<int kStrips>() {
    return !product.gated ? experts_few<kStrips, false, false>
           : routes       ? experts_few<kStrips, true, true>
                          : experts_few<kStrips, true, false>;
  };
  const auto kernel =
      tokens <= 8 ? with_strips.template operator()<1>() : with_strips.template operator()<2>();
  const int64_t shared =
      int64_t{kWarps} * args.slots * args.slot.bytes + int64_t{args.buffers} * tokens * args.token.pitch;
  const int64_t items = (pairs / tokens + std::min<int64_t>(shape.experts, pairs)) * args.across;
  launch(context, kernel,
         {dim3(static_cast<unsigned>(std::min<int64_t>(context.processors, items))), dim3(kThreads), shared},
         args);
}

}  // namespace sluice::backend::cuda
