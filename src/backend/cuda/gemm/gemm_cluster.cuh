// Products of packed weights with some tens to hundreds of tokens, by wgmma (sm_90a): plain matrices and
// heads, of which there are too few outputs to fill a device. A thread block has a tile of up to 128 tokens.
//
// So columns are shared: four warpgroups of a thread block take a chunk of 128 columns of 64 outputs in turn,
// and up to four blocks, a cluster, a stretch of the columns each. Weights go from global memory into
// registers a chunk ahead, asked for before the kernel waits for its predecessor; tokens come in n-tiles by
// bulk copies, most of what a block needs at once. Sums meet in shared memory, warpgroups' first, then the
// blocks', in the order of either; what is added to them (a residual, experts' results) is asked for before.
// An element's sum depends on nothing but its weights and its token.
#pragma once

#include "backend/cuda/gemm/gemm_mma.cuh"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/wgmma.cuh"

namespace sluice::backend::cuda {

namespace cluster {

inline constexpr int kThreads = 512, kGroups = kThreads / 128;  ///< warpgroups
inline constexpr int kTileRows = 64;                            ///< outputs of a warpgroup
inline constexpr int kMostBlocks = 4, kMostProducts = 4;
inline constexpr int kNTileBytes = kNTileTokens * kChunkColumns * 2;
/// Floats from a token's sums to the next one's: eight rows of four tokens fall on different banks.
inline constexpr int kPitch = kTileRows + 4;

/// Of a block: each has a barrier of its own. With fewer a warpgroup could find the round before its own
/// unfinished and take that for the end of its own.
inline constexpr int kMostChunks = 64;
/// Chunks of tokens in shared memory at a time.
constexpr int stages_of(int tokens) { return tokens > 64 ? 5 : 10; }
constexpr int stage_bytes(int tokens) { return tokens * kChunkColumns * 2; }
constexpr int sums_bytes(int tokens) { return tokens * kPitch * 4; }
/// Tokens of a block's share, the last one's may be fewer.
SLUICE_BOTH constexpr int share_of(int tokens, int blocks) { return (tokens + blocks - 1) / blocks; }
/// The stages, where the warpgroups' sums meet later; what a cluster's blocks push; whole atoms.
constexpr int shared_bytes(int tokens) {
  return stages_of(tokens) * stage_bytes(tokens) + sums_bytes(tokens + kMostBlocks) + 1024;
}
static_assert(kGroups * sums_bytes(128) <= stages_of(128) * stage_bytes(128));
static_assert(kGroups * sums_bytes(64) <= stages_of(64) * stage_bytes(64));
static_assert(kGroups * sums_bytes(32) <= stages_of(32) * stage_bytes(32));

struct Item {
  Product product;
  int32_t across;  ///< blocks' outputs in a matrix
  int32_t end;     ///< blocks' outputs of this product and those before it
};
/// A token's experts, their results and weights (CombinePlan): added to the only product's.
struct Added {
  const float* each;  ///< [token][used][outputs], or null: nothing is added
  Rows<int32_t> ids;
  Rows<float> weights;
  int32_t used;
};
inline constexpr int kMostAdded = 8;
/// Products of the same tokens; weights of one family.
struct Args {
  Item item[kMostProducts];
  int32_t blocks;  ///< of a cluster
  Added added;
};

}  // namespace cluster

/// In the order of their ids: which of a token's experts come, and what they are weighed with.
template <int kTokens>
__device__ __forceinline__ void put_in_order(const cluster::Added& added, int token,
                                             uint8_t (&index)[cluster::kMostAdded][kTokens],
                                             float (&weight)[cluster::kMostAdded][kTokens]) {
  int id[cluster::kMostAdded];
  float by[cluster::kMostAdded];
#pragma unroll
  for (int k = 0; k < cluster::kMostAdded; ++k) {
    if (k >= added.used) break;
    id[k] = load_result(added.ids(token) + k), by[k] = load_result(added.weights(token) + k);
  }
#pragma unroll
  for (int k = 0; k < cluster::kMostAdded; ++k) {
    if (k >= added.used) break;
    int rank = 0;
#pragma unroll
    for (int other = 0; other < cluster::kMostAdded; ++other)
      rank += other < added.used && id[other] < id[k] ? 1 : 0;
    index[rank][threadIdx.x] = static_cast<uint8_t>(k), weight[rank][threadIdx.x] = by[k];
  }
}

/// kAlong: warpgroups that share the columns; the others have outputs of their own. kType: what the weights
/// are of; F32: one of the family's, told at run time.
template <Family kFamily, quant::Type kType, int kTokens, int kAlong>
__global__ void __launch_bounds__(cluster::kThreads, 1)
    multiply_cluster(const Timestamps timestamps, const __grid_constant__ cluster::Args p) {
#ifdef SLUICE_WGMMA
  using namespace cluster;
  constexpr int kStages = stages_of(kTokens), kStage = stage_bytes(kTokens);
  constexpr int kTiles = kGroups / kAlong, kNTiles = kTokens / kNTileTokens;
  constexpr int kCopies = kTokens / kGroupTokens, kCopyBytes = kGroupTokens * kChunkColumns * 2;
  extern __shared__ char cluster_shared[];
  __shared__ __align__(8) uint64_t barriers[kMostChunks];
  __shared__ Arrivals arrivals;
  __shared__ float scales[kTokens];
  __shared__ float added_weight[kMostAdded][kTokens];
  __shared__ uint8_t added_index[kMostAdded][kTokens];
  char* const base = cluster_shared + (1024 - shared_address(cluster_shared) % 1024) % 1024;
  const uint32_t full = shared_address(barriers), stages = shared_address(base);
  float* const sums = reinterpret_cast<float*>(base);
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x / 32 % 4;
  const int group = threadIdx.x / 128, along = group % kAlong;
  const PdlLink pdl(timestamps);
  if (threadIdx.x < kMostChunks) barrier_init(full + 8 * threadIdx.x, 1), barrier_init_fence();
  if (threadIdx.x == 0 && p.blocks > 1) arrivals.begin();
  __syncthreads();
  if (p.blocks > 1) cluster_here(), cluster_all();

  // Which outputs, which columns.
  const int rank = static_cast<int>(blockIdx.x) % p.blocks;
  int index = static_cast<int>(blockIdx.x) / p.blocks, which = 0;
  while (index >= p.item[which].end) ++which;
  if (which > 0) index -= p.item[which - 1].end;
  const Product& product = p.item[which].product;
  const bool gated = product.gated;
  const int matrix = index / p.item[which].across;
  const int outputs = gated ? kTileRows / 2 : kTileRows;  // of a warpgroup
  const int first_output = (index - matrix * p.item[which].across) * outputs * kTiles;
  const int all_chunks = product.tokens.chunks;
  const int begin = all_chunks * rank / p.blocks, count = all_chunks * (rank + 1) / p.blocks - begin;

  // Its gates lie in a warpgroup's first two warps, their ups in the others.
  Matrix w = gated && warp >= 2 ? product.up : product.weight;
  if constexpr (kType != quant::Type::F32) w.type = kType;
  const int first_row = first_output + group / kAlong * outputs + (gated ? warp % 2 : warp) * 16 + g;
  const auto row_at = [&](int n) { return w.row(matrix, min(n, w.rows - 1)); };
  const int64_t row[2] = {row_at(first_row), row_at(first_row + 8)};
  const int blocks = blocks_of(w);
  Block<kFamily> next[2];
  const auto load = [&](int i) {
    const int block = (begin + i) * 4 + t;
#pragma unroll
    for (int h = 0; h < 2; ++h) next[h].load(w, row[h], block, i < count && block < blocks);
  };
  load(along);
  // Registers hold a chunk ahead; further ones are asked for here: lane l follows row l of the warp's 16.
  if constexpr (kAlong == kGroups) {
    constexpr int kBytes = 4 * 4 * Block<kFamily>::kCodeWords;  // of a chunk
    const uint8_t* const codes = w.codes + row_at(first_row - g + lane % 16) * blocks * (kBytes / 4);
    for (int i = kAlong + along * 2 + lane / 16; i < count; i += 2 * kAlong)
      prefetch(codes + (begin + i) * kBytes);
  }
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int rows = min(*product.plan.rows - first_token, kTokens);  // uploaded before the step's first kernel
  pdl.wait();
  if (rows <= 0) return;  // all blocks of the cluster

  const int copies = min(kCopies, (rows + kGroupTokens - 1) / kGroupTokens);
  const char* const tokens = reinterpret_cast<const char*>(product.tokens.data) +
                             (static_cast<int64_t>(matrix) * product.plan.per_matrix + first_token) *
                                 all_chunks * (kChunkColumns * 2);
  // A chunk's tokens, by the first lanes of a warpgroup's warps.
  const auto bring = [&](int i) {
    if (lane != 0) return;
    const int stage = i % kStages;
    if (warp == 0) barrier_expect(full + 8 * i, static_cast<uint32_t>(copies * kCopyBytes));
    for (int part = warp; part < copies; part += 4) {
      copy_bulk(stages + static_cast<uint32_t>(stage * kStage + part * kCopyBytes),
                tokens + (int64_t{part} * all_chunks + begin + i) * kCopyBytes, kCopyBytes, full + 8 * i);
    }
  };
  for (int i = group; i < min(count, kStages); i += kGroups) bring(i);
  // What sums meet with at last.
  const Added& added = p.added;
  if (threadIdx.x < kTokens) {
    const int token = first_token + min(static_cast<int>(threadIdx.x), rows - 1);
    scales[threadIdx.x] = load_result(product.tokens.scale + matrix * product.plan.per_matrix + token);
    if (added.each != nullptr) put_in_order(added, token, added_index, added_weight);
  }

  float sum[kNTiles][4] = {};
  for (int i = along; i < count; i += kAlong) {
    const Block<kFamily> now[2] = {next[0], next[1]};
    load(i + kAlong);
    const fragments::Affine affine[2] = {now[0].affine(w), now[1].affine(w)};
    const int stage = i % kStages;
    const uint64_t second = matrix_descriptor(stages + static_cast<uint32_t>(stage * kStage), kNTileBytes);
    uint32_t a[4][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unpack(w, now, affine, half, a);
      if (half == 0) barrier_wait(full + 8 * i, 0);
      wgmma_fence();
#pragma unroll
      for (int s = 0; s < 4; ++s) wgmma_64x16(sum, a[s], second + ((half * 1024 + s * 32) >> 4));
      wgmma_commit();
      wgmma_wait<0>();
    }
    if constexpr (kAlong == kGroups) {  // where warpgroups share chunks, all of them fit
      if (i + kStages < count) {
        asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
        bring(i + kStages);
      }
    }
  }

  __syncthreads();  // no tokens are read any more
  {
    float* const mine = sums + group * (kTokens * kPitch) + warp * 16 + g;
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) mine[(n * 8 + 2 * t + j % 2) * kPitch + j / 2 * 8] = sum[n][j];
    }
  }
  __syncthreads();

  const auto add = [](float4& to, const float4& v) { to.x += v.x, to.y += v.y, to.z += v.z, to.w += v.w; };
  const auto all_sums = [&](const float* of, int pieces, int apart, int token, int column) {
    float4 total = *reinterpret_cast<const float4*>(of + token * kPitch + column);
    for (int i = 1; i < pieces; ++i)
      add(total, *reinterpret_cast<const float4*>(of + i * apart + token * kPitch + column));
    return total;
  };
  const Sink& sink = product.sink;
  // What is added to four outputs from n on of the block's i-th token.
  const auto others = [&](int i, int64_t n) {
    const int token = first_token + i;
    float4 v{0, 0, 0, 0};
    if (n >= w.rows) return v;
    if (sink.residual != nullptr)
      v = __ldcg(reinterpret_cast<const float4*>(sink.residual + token * sink.residual_stride + n));
    if (product.bias != nullptr)
      add(v, __ldg(reinterpret_cast<const float4*>(product.bias + int64_t{matrix} * w.rows + n)));
    if (added.each != nullptr) {
      float4 each[kMostAdded];
#pragma unroll
      for (int k = 0; k < kMostAdded; ++k) {
        if (k < added.used) {
          const int64_t pair = int64_t{token} * added.used + added_index[k][i];
          each[k] = __ldcg(reinterpret_cast<const float4*>(added.each + pair * w.rows + n));
        }
      }
#pragma unroll
      for (int k = 0; k < kMostAdded; ++k) {
        if (k >= added.used) break;
        const float by = added_weight[k][i];
        v.x += by * each[k].x, v.y += by * each[k].y, v.z += by * each[k].z, v.w += by * each[k].w;
      }
    }
    return v;
  };
  // Four outputs of a token, if they are there; pieces of their sums lie `apart`.
  const auto finish = [&](const float* of, int pieces, int apart, int token, int at, int output, int column,
                          const float4& more) {
    if (output + column >= w.rows) return;
    float4 v = all_sums(of, pieces, apart, at, column);
    const float scale = scales[token];
    v.x *= scale, v.y *= scale, v.z *= scale, v.w *= scale;
    if (gated) {
      const float4 up = all_sums(of, pieces, apart, at, column + kTileRows / 2);
      v.x = tiles::silu(v.x) * (up.x * scale), v.y = tiles::silu(v.y) * (up.y * scale);
      v.z = tiles::silu(v.z) * (up.z * scale), v.w = tiles::silu(v.w) * (up.w * scale);
    }
    add(v, more);
    const int64_t n = output + column;
    *reinterpret_cast<float4*>(sink.out.data + (first_token + token) * sink.out.row_stride +
                               matrix * sink.head_per_matrix * sink.out.head_stride + n) = v;
  };
  constexpr int kApart = kTokens * kPitch;  // floats
  const int fours = outputs / 4;
  if (p.blocks == 1) {
    for (int i = threadIdx.x; i < kTiles * rows * fours; i += kThreads) {
      const int column = i % fours * 4, token = i / fours % rows, tile = i / fours / rows;
      const int output = first_output + tile * outputs;
      finish(sums + tile * kAlong * kApart, kAlong, kApart, token, token, output, column,
             others(token, output + column));
    }
    return;
  }
  // Blocks' sums of a share of the tokens meet where that share is: its own stay, the others are pushed.
  constexpr int kFours = kTileRows / 4;
  const int share = share_of(kTokens, p.blocks), share_floats = share * kPitch;
  float* const pushed = reinterpret_cast<float*>(base + kStages * kStage);
  for (int i = threadIdx.x; i < kTokens * kFours; i += kThreads) {
    const int token = i / kFours, column = i % kFours * 4, in_share = token - rank * share;
    float* const to = in_share >= 0 && in_share < share ? pushed + rank * share_floats + in_share * kPitch
                                                        : sums + token * kPitch;
    *reinterpret_cast<float4*>(to + column) = all_sums(sums, kAlong, kApart, token, column);
  }
  pushes_from_here();
  __syncthreads();
  if (threadIdx.x == 0) {
    arrivals.expect((p.blocks - 1) * share_floats * 4);
    for (int r = 0; r < p.blocks; ++r) {
      if (r != rank)
        arrivals.push(pushed + rank * share_floats, sums + r * share_floats, share_floats * 4,
                      static_cast<unsigned>(r));
    }
  }
  constexpr int kMostPasses = (share_of(kTokens, 2) * kFours + kThreads - 1) / kThreads;
  float4 more[kMostPasses];
  const auto passes = [&](auto each) {
#pragma unroll
    for (int m = 0; m < kMostPasses; ++m) {
      const int i = static_cast<int>(threadIdx.x) + m * kThreads, at = i / fours, token = rank * share + at;
      if (at < share && token < rows) each(m, token, at, i % fours * 4);
    }
  };
  passes([&](int m, int token, int, int column) { more[m] = others(token, first_output + column); });
  arrivals.wait();
  cluster_here();
  passes([&](int m, int token, int at, int column) {
    finish(pushed, p.blocks, share_floats, token, at, first_output, column, more[m]);
  });
  cluster_all();
#endif
}

}  // namespace sluice::backend::cuda
