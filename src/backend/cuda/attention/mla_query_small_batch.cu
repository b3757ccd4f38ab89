// mla_query of 2 to 32 rows in one launch, where attention/mla_query_gemm.cu takes four: a cluster of four
// blocks takes a head. Each block norms and packs the rows for itself, makes a quarter of the head's queries
// (q) and pushes it to the others; then it turns the rotary columns of a quarter of the rows, packs what is
// not rotated and makes a quarter of the latent queries (k_b). Clusters behind those of the heads put rows
// into the cache.
//
// Bound by latency: weights (53 KB a block for GLM-4.7-Flash in q4_0) are asked for before the kernel waits
// for its predecessor, into registers. A warp multiplies 16 outputs and every fourth chunk of 128 columns;
// sums meet in shared memory in the order of the warps.
//
// And mla_heads of 2 to 8 rows over short contexts, which begins with that launch.
#include <numbers>

#include "backend/cuda/attention/append_row.cuh"
#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/gemv/head_matmul_small_batch.h"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using namespace small_batch;

constexpr int kBlocks = 4;          ///< of a cluster
constexpr int kMostQuery = 256;     ///< columns of a head's query, nope and rotated
constexpr int kMostRank = 512;      ///< columns of a latent query
constexpr int kMostColumns = 1024;  ///< of the low-rank query
constexpr int kMostRotated = 64;
constexpr int kAhead = 2;  ///< chunks of q that a warp asks for before it waits

struct Args {
  StepView step;
  CacheRows appended;
  Rows<float> in, out;
  const float* q_norm;
  Matrix q, k_b;
  int32_t heads, nope, rotated, rank;
  float epsilon;
  RopeTable rope;
};

template <int kNTiles>
struct Shared {
  static constexpr int kTokens = kNTiles * kNTileTokens;
  alignas(16) float query[kTokens][kMostQuery];
  alignas(16) float reduction[reduction_floats(kNTiles)];
  alignas(16) float norm[kMostColumns];
  float scale[kTokens];
  Arrivals queries_there;
  alignas(16) char packed[];  ///< tokens as halves
};

/// The rows normed, as halves. A warp's rows are asked for together.
template <int kNTiles>
__device__ __forceinline__ void pack_rows(const Args& p, Shared<kNTiles>& s, int rows, int chunks) {
  constexpr int kHeld = kMostColumns / kChunkColumns, kEach = (s.kTokens + kWarps - 1) / kWarps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float4 v[kEach][kHeld];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const auto* const row = reinterpret_cast<const float4*>(p.in(min(warp + e * kWarps, rows - 1))) + lane;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) v[e][i] = i < chunks ? __ldcg(row + i * 32) : float4{0, 0, 0, 0};
  }
  wait_copies<0>();
  __syncthreads();  // the norm is there
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int token = warp + e * kWarps;
    if (token >= s.kTokens) break;
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (i >= chunks) break;
      float4& one = v[e][i];
      squares += one.x * one.x + one.y * one.y + one.z * one.z + one.w * one.w;
      const float4 norm = reinterpret_cast<const float4*>(s.norm)[i * 32 + lane];
      one.x *= norm.x, one.y *= norm.y, one.z *= norm.z, one.w *= norm.w;
    }
    pack_row(v[e], chunks, s.packed + token * row_pitch(chunks), s.scale + token);
    // The norm's factor multiplies the sums.
    squares = lane_sum(squares);
    if (lane == 0) s.scale[token] *= 1.0f / sqrtf(squares / static_cast<float>(p.in.columns) + p.epsilon);
  }
}

/// What of the queries is not rotated, as halves, in place of the rows.
template <int kNTiles>
__device__ __forceinline__ void pack_queries(const Args& p, Shared<kNTiles>& s, int chunks) {
  const int lane = threadIdx.x % 32;
  for (int token = threadIdx.x / 32; token < s.kTokens; token += kWarps) {
    float4 v[kMostQuery / kChunkColumns];
#pragma unroll
    for (int i = 0; i < kMostQuery / kChunkColumns; ++i) {
      const int c = i * kChunkColumns + lane * 4;
      v[i] = c < p.nope ? *reinterpret_cast<const float4*>(&s.query[token][c]) : float4{0, 0, 0, 0};
    }
    pack_row(v, chunks, s.packed + token * row_pitch(chunks), s.scale + token);
  }
}

template <quant::Type kQ, quant::Type kB, int kNTiles>
__global__ void __launch_bounds__(kThreads, 1)
    mla_query_small_batch(const Timestamps timestamps, const __grid_constant__ Args p) {
  extern __shared__ __align__(128) char batch_shared[];
  auto& s = *reinterpret_cast<Shared<kNTiles>*>(batch_shared);
  const PdlLink pdl(timestamps);
  const int rows = p.step.header->rows;  // uploaded before the step's first kernel: no wait
  const int warp = threadIdx.x / 32, head = static_cast<int>(blockIdx.x) / kBlocks;
  if (head >= p.heads) {
    const int row = static_cast<int>(blockIdx.x) - p.heads * kBlocks;
    if (row >= rows) return pdl.wait();
    const RowToAppend ahead = row_to_append(p.appended, p.rope, row);
    pdl.wait();
    return append_row(p.appended, p.rope, row, ahead);
  }
  const int rank = static_cast<int>(cluster_rank()), width = p.nope + p.rotated;
  const int share = width / kBlocks, chunks = p.q.columns / kChunkColumns;
  const int latents = p.rank / kBlocks, k_chunks = (p.nope + kChunkColumns - 1) / kChunkColumns;
  if (threadIdx.x == 0) s.queries_there.begin();
  cluster_here();

  // Weights first. A warp's 16 outputs, and its chunks of them.
  constexpr int kTiles = kMostQuery / kBlocks / 16, kShares = kWarps / kTiles;
  constexpr int kLatentTiles = kMostRank / kBlocks / 16;
  const int tile = warp % kTiles, part = warp / kTiles, k_tile = warp % kLatentTiles,
            k_part = warp / kLatentTiles;
  const bool has_tile = tile < share / 16, has_latents = k_tile < latents / 16 && k_part < k_chunks;
  const int64_t q_row = p.q.row(0, int64_t{head} * width + rank * share + tile * 16);
  const int64_t k_row = p.k_b.row(head, rank * latents + k_tile * 16);
  Unit<kQ> q[kAhead];
  Unit<kB> k_b;
  if (has_tile) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) q[i].load(p.q, q_row, min(part + i * kShares, chunks - 1));
  }
  if (has_latents) k_b.load(p.k_b, k_row, k_part);
  for (int i = static_cast<int>(threadIdx.x); i < p.in.columns / 4; i += kThreads)
    copy_async(shared_address(s.norm + 4 * i), p.q_norm + 4 * i);
  commit_copies();
  // The rotary columns of every fourth row are this block's to turn: a pair a thread.
  const int rotated_row = static_cast<int>(threadIdx.x) / 32 * kBlocks + rank, pair = threadIdx.x % 32;
  const bool rotates = rotated_row < rows && pair < p.rotated / 2;
  SinCos sin_cos{};
  if (rotates) sin_cos = p.rope.sin_cos(p.step.positions[rotated_row], pair, p.appended.factors);
  if (threadIdx.x == 0) s.queries_there.expect((kBlocks - 1) * share * 4 * s.kTokens);

  pdl.wait();
  pack_rows(p, s, rows, chunks);
  __syncthreads();
  float sum[kNTiles][4] = {};
  if (has_tile) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (part + i * kShares < chunks)
        q[i].multiply(p.q, s.packed, row_pitch(chunks), part + i * kShares, sum);
    }
    for (int c = part + kAhead * kShares; c < chunks; c += kShares) {
      q[0].load(p.q, q_row, c);
      q[0].multiply(p.q, s.packed, row_pitch(chunks), c, sum);
    }
  }
  reduce_fours<kTiles>(sum, share / 16, s.reduction, [&](int of, int token, int four, float4 all) {
    *reinterpret_cast<float4*>(&s.query[token][rank * share + of * 16 + four * 4]) =
        times(all, s.scale[token]);
  });
  pushes_from_here();
  __syncthreads();
  cluster_all();  // everybody counts by now
  // A warp's copies go one after the other: every warp has some.
  for (int i = threadIdx.x % 32 * kWarps + warp; i < s.kTokens * (kBlocks - 1); i += kThreads) {
    const int token = i / (kBlocks - 1), other = (rank + 1 + i % (kBlocks - 1)) % kBlocks;
    s.queries_there.push_row(&s.query[token][rank * share], share * 4, static_cast<unsigned>(other));
  }
  s.queries_there.wait();
  cluster_here();

  if (rotates) {
    const float* const from = s.query[rotated_row] + p.nope;
    float* const to = p.out(rotated_row, head) + p.rank;
    const int half = p.rotated / 2, first = p.rope.first(pair), second = p.rope.second(pair, half);
    const float a = from[first], b = from[second];
    to[first] = a * sin_cos.cosine - b * sin_cos.sine;
    to[second] = a * sin_cos.sine + b * sin_cos.cosine;
  }
  pack_queries(p, s, k_chunks);
  __syncthreads();
#pragma unroll
  for (int n = 0; n < kNTiles; ++n) sum[n][0] = sum[n][1] = sum[n][2] = sum[n][3] = 0;
  if (has_latents) k_b.multiply(p.k_b, s.packed, row_pitch(k_chunks), k_part, sum);
  reduce_fours<kLatentTiles>(sum, latents / 16, s.reduction, [&](int of, int token, int four, float4 all) {
    if (token < rows)
      *reinterpret_cast<float4*>(p.out(token, head) + rank * latents + of * 16 + four * 4) =
          times(all, s.scale[token]);
  });
  cluster_all();
}

template <quant::Type kQ, quant::Type kB>
auto kernel_of(int64_t rows) {
  return rows <= 8    ? mla_query_small_batch<kQ, kB, 1>
         : rows <= 16 ? mla_query_small_batch<kQ, kB, 2>
                      : mla_query_small_batch<kQ, kB, 4>;
}
int64_t shared_bytes(int64_t rows, int64_t columns, int64_t nope) {
  const int n_tiles = rows <= 8 ? 1 : rows <= 16 ? 2 : 4;
  const auto chunks = static_cast<int>(std::max(columns, padded_columns(nope)) / kChunkColumns);
  const int64_t fixed = n_tiles == 1   ? sizeof(Shared<1>)
                        : n_tiles == 2 ? sizeof(Shared<2>)
                                       : sizeof(Shared<4>);
  return fixed + int64_t{n_tiles} * kNTileTokens * row_pitch(chunks);
}

void start_query(const Program& p, const MlaQuery& op, const Rows<float>& out, const Context& c) {
  const Memory& memory = c.memory;
  const int64_t rotated = op.rope_columns(p);
  Args args{};
  args.step = c.step;
  args.in = flat(memory.rows(op.in.id)), args.out = out;
  args.q_norm = memory.vector(op.q_norm.id);
  args.q = memory.matrix(op.q.id), args.k_b = memory.matrix(op.k_b.id);
  args.heads = args.out.heads, args.nope = static_cast<int32_t>(op.nope(p));
  args.rotated = static_cast<int32_t>(rotated), args.rank = static_cast<int32_t>(op.rank(p));
  args.epsilon = op.epsilon, args.rope = rope_table(op.rope, rotated);
  args.appended = {c.step,
                   memory.cache(op.cache.id),
                   op.cache_layer,
                   args.rank,
                   memory.rows(op.kv.id),
                   memory.vector(op.kv_norm.id),
                   memory.vector(op.factors.id),
                   op.epsilon};
  const int64_t blocks = args.heads * kBlocks + (c.step_rows + kBlocks - 1) / kBlocks * kBlocks;
  const LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(kThreads),
                          shared_bytes(c.step_rows, args.q.columns, args.nope), kBlocks};
  using quant::Type;
  if (args.q.type == Type::Q4_K && args.k_b.type == Type::Q5_0)
    return launch(c, kernel_of<Type::Q4_K, Type::Q5_0>(c.step_rows), shape, args);
  if (args.q.type == Type::Q4_K)
    return launch(c, kernel_of<Type::Q4_K, Type::Q8_0>(c.step_rows), shape, args);
  if (args.q.type == Type::Q8_0)
    return launch(c, kernel_of<Type::Q8_0, Type::Q8_0>(c.step_rows), shape, args);
  if (args.k_b.type == Type::Q8_0)
    return launch(c, kernel_of<Type::Q4_0, Type::Q8_0>(c.step_rows), shape, args);
  launch(c, kernel_of<Type::Q4_0, Type::Q4_0>(c.step_rows), shape, args);
}

void launch_query(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MlaQuery>(record.args);
  start_query(p, op, c.memory.rows(op.out.id), c);
}

bool serves_query(const Program& p, const MlaQuery& op, const Sizes& sizes) {
  using quant::Type;
  if (sizes.architecture < 90 || sizes.rows <= kNarrowRows || sizes.rows > kMostRows || !op.q || !op.q_norm ||
      op.k_b_reduce != Reduce::Columns)
    return false;
  const Type q = p[op.q.id].type, k_b = p[op.k_b.id].type;
  const bool typed = k_b == Type::Q8_0   ? q == Type::Q4_0 || q == Type::Q4_K || q == Type::Q8_0
                     : k_b == Type::Q5_0 ? q == Type::Q4_K  // Q4_K where rows are no whole 256 columns
                                         : k_b == Type::Q4_0 && q == Type::Q4_0;
  const quant::CacheRow row = p[op.cache.id].cache_row();
  const int64_t rank = op.rank(p), nope = op.nope(p), rotated = op.rope_columns(p), width = nope + rotated;
  const int64_t columns = p[op.in.id].columns();
  return typed && (row.type == Type::F16 || row.coded() == rank) && in_fours(p[op.in.id]) &&
         columns % kChunkColumns == 0 && columns <= kMostColumns && width <= kMostQuery &&
         width % (16 * kBlocks) == 0 && rank <= kMostRank && rank % (16 * kBlocks) == 0 && nope % 32 == 0 &&
         rotated <= kMostRotated &&
         shared_bytes(sizes.rows, columns, nope) <= most_shared(sizes.architecture);
}

bool serves(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaQuery>(record.args);
  return in_fours(p[op.out.id]) && serves_query(p, op, sizes);
}

/// mla_heads of 2 to 8 rows whose contexts are short: queries, attention by chunks of contexts, values, whose
/// blocks put the chunks together for themselves.
constexpr int kJoinedRows = 8;
static_assert(kCtx512 / program::kPageRows <= kMostJoined);

bool serves_heads(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaHeads>(record.args);
  return sizes.rows <= kJoinedRows && sizes.longest <= kCtx512 &&
         most_shared(sizes.architecture) > kMostShared && serves_query(p, op.query, sizes) &&
         op.query.rank(p) == kMlaRank && op.query.rope_columns(p) == kMlaWidth - kMlaRank &&
         serves_head_matmul_small_batch(p[op.v_b.id], p[op.out.id]);
}

struct HeadsScratch {
  float *queries, *context, *parts;
  float2* weights;
};
HeadsScratch take_scratch(Scratch& scratch, const Program& p, const MlaHeads& op, int64_t rows, int most) {
  const int64_t all = rows * p[op.out.id].heads();
  return {scratch.take<float>(all * kMlaWidth), scratch.take<float>(all * kMlaRank),
          scratch.take<float>(all * most * kMlaRank), scratch.take<float2>(all * most)};
}
int64_t heads_scratch_bytes(const Program& p, const Op& record, const Sizes& sizes) {
  int64_t bytes = 0;
  for (int64_t rows = 2; rows <= kJoinedRows; ++rows) {
    Scratch scratch(nullptr);
    take_scratch(scratch, p, std::get<MlaHeads>(record.args), rows, most_chunks(rows, sizes.sm_count));
    bytes = std::max(bytes, scratch.bytes());
  }
  return bytes;
}

std::optional<FormSpec> produces_heads(const Program& p, const Op& record, const Sizes& sizes) {
  return given_rows_codes(p, std::get<MlaHeads>(record.args).out.id, sizes);
}

void launch_heads(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<MlaHeads>(record.args);
  Scratch scratch(c.scratch);
  const int32_t most = most_chunks(c.step_rows, c.sm_count);
  const HeadsScratch s = take_scratch(scratch, p, op, c.step_rows, most);
  const Rows<float> out = c.memory.rows(op.out.id);
  const auto rows_of = [&](float* data, int64_t columns) {
    return Rows<float>{data, out.heads * columns, columns, out.heads, static_cast<int32_t>(columns)};
  };
  const Rows<float> queries = rows_of(s.queries, kMlaWidth), context = rows_of(s.context, kMlaRank);
  start_query(p, op.query, queries, c);
  attend_split({c.step, c.memory.cache(op.query.cache.id), queries, context, op.query.cache_layer,
                op.scale * std::numbers::log2e_v<float>, most, s.weights, s.parts},
               c, false);
  head_matmul_small_batch(context, out, c.memory.matrix(op.v_b.id),
                          {c.step.positions, s.weights, s.parts, most}, c);
}

}  // namespace

const Kernel kMlaQuerySmallBatch{"small-batch queries, a cluster a head", serves, launch_query};
const Kernel kMlaHeadsSmallBatch{"small-batch queries, split-KV attention, values", serves_heads,
                                 launch_heads, heads_scratch_bytes, produces_heads};

}  // namespace sluice::backend::cuda
