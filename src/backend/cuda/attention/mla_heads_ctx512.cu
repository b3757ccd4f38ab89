// mla_heads for one row and a short context, and its first half, mla_query, for any context: a cluster of
// blocks takes a head from the low-rank query to its values, so that four products and the attention cost one
// launch. The blocks of a cluster share the head's queries by 32, the chunks of its context and the rows of
// its values; what one makes it pushes into the others' shared memory, twice:
//
//   32 queries each (q), their part of all latent queries (k_b) | sums of the parts; attention over this
//   block's chunks | put together, values (v_b)
//
// Every block norms the latent and turns the key for itself; the row enters the cache from the first one, and
// everybody reads it from shared memory. All weights are asked for before the kernel waits for its
// predecessor: they do not depend on it.
//
// GLM-4.7-Flash in the q4_0 mix: 6.4 MB of weights and 1,152 bytes a position, which all heads read from L2;
// so over a longer context (kCtx512) mla_heads_split_kv.cu reads it once for all heads.
#include <cuda_fp16.h>

#include <cstddef>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/attention/mla_heads_split_kv.cuh"
#include "backend/cuda/attention/mla_row.cuh"
#include "backend/cuda/gemv/lane_rows.cuh"
#include "backend/cuda/prim/any_type.cuh"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/prefetch.cuh"
#include "backend/cuda/prim/rope.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = kHeadThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kShare = kQueriesOfBlock;                                         // a block of columns of k_b
constexpr int kRank = kMlaRank, kWidth = kMlaWidth, kRotated = kWidth - kRank;  // of a cache row
constexpr int kChunk = 32;  // positions; a page is some of them

using Args = MlaHeadsArgs;

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kHasClusters = false;
#else
constexpr bool kHasClusters = true;
#endif

constexpr int activation_bytes(int columns) { return columns / 32 * 40; }

/// What a block makes of its chunks: its unnormalised sums of values, the largest score and the total weight.
struct alignas(16) Sums {
  float of[kRank];
  float largest, total;
};

/// A block's shared memory.
struct alignas(16) Shared {
  float q_norm[kMostQueryColumns];
  char x[activation_bytes(kMostQueryColumns)];   // the low-rank query
  char q_blocks[activation_bytes(32 * kWarps)];  // this block's queries, a copy a warp
  char context[activation_bytes(kRank)];
  float q[kShare];
  alignas(16) float parts[kMostInCluster][kRank];  // of latent queries, by block of the cluster
  alignas(16) float rotated[kRotated];             // queries to be rotated
  alignas(16) float query[kWidth];
  alignas(16) char current[HalfRow::kBytes];  // the row that this step adds, as the cache holds it
  float weights[kChunk], values[kThreads];
  SinCos angles[kRotated / 2];
  alignas(16) float partial[2][kWarps];
  Arrivals queries_there, sums_there;
  Sums sums[kMostInCluster];  // by block; from here on only where the context is attended to
  alignas(16) char chunk[kChunk * HalfRow::kBytes];  // rows of the cache as they are
};

__device__ inline Shared& shared() { return *reinterpret_cast<Shared*>(dynamic_shared(0)); }
__device__ inline int thread() { return static_cast<int>(threadIdx.x); }

__device__ inline float factor_of(const float* partial, int columns, float epsilon) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partial[w];
  return rsqrtf(sum / static_cast<float>(columns) + epsilon);
}

/// The low-rank query, quantised; returns the factor of its norm. The block meets.
__device__ inline float quantize_query(const Args& args, const Activations& x) {
  if (args.q.codes == nullptr) return 1;
  Shared& s = shared();
  const float squares =
      lane_sum(quantize_row<kThreads>(x, args.in(0), args.q_norm != nullptr ? s.q_norm : nullptr, [] {}));
  if (thread() % 32 == 0) s.partial[1][thread() / 32] = squares;
  __syncthreads();
  return args.q_norm != nullptr ? factor_of(s.partial[1], args.in.columns, args.epsilon) : 1.0f;
}

/// A thread's numbers of the row that this step adds to the cache, on their way.
struct NewRow {
  static constexpr int kEach = kRank / kThreads;
  float latent[kEach], a = 0, b = 0;  // a, b: a pair to be rotated

  __device__ explicit NewRow(const Args& args) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) latent[i] = load_result(args.kv + i * kThreads + thread());
    if (thread() >= kRotated / 2) return;
    a = load_result(args.kv + kRank + args.rope.first(thread()));
    b = load_result(args.kv + kRank + args.rope.second(thread(), kRotated / 2));
  }

  /// As the cache holds it, to shared memory, and from the first block to the cache. The block meets, and
  /// meets again before the row is read.
  template <typename Row>
  __device__ void put(const Args& args, const float (&kv_norm)[kEach]) const {
    Shared& s = shared();
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) squares += latent[i] * latent[i];
    squares = lane_sum(squares);
    if (thread() % 32 == 0) s.partial[0][thread() / 32] = squares;
    __syncthreads();
    const float factor = factor_of(s.partial[0], kRank, args.epsilon);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      Row::put_latent(s.current, i * kThreads + thread(), latent[i] * factor * kv_norm[i]);
    if (thread() < kRotated / 2) {
      const SinCos sin_cos = s.angles[thread()];
      put_exact<Row>(s.current, args.rope.first(thread()), a * sin_cos.cosine - b * sin_cos.sine);
      put_exact<Row>(s.current, args.rope.second(thread(), kRotated / 2),
                     a * sin_cos.sine + b * sin_cos.cosine);
    }
    if (blockIdx.x != 0) return;
    __syncthreads();
    const int slot = __ldg(args.step.slots);
    if (slot >= 0) copy_row<Row>(args.cache.row(args.layer, slot), s.current);
  }
};

/// This block's queries, to shared memory. The block meets.
template <typename Rows>
__device__ inline void make_queries(const Args& args, int head, int rank, Rows& q, const Activations& x,
                                    float factor) {
  Shared& s = shared();
  if (args.q.codes == nullptr) {
    if (thread() < kShare) s.q[thread()] = __ldcg(args.in(0, head) + rank * kShare + thread());
  } else {
    q.multiply(x, [&](int row, float value) { s.q[row] = value * factor; });
  }
  __syncthreads();
}

/// What this block's queries give of latent queries, or they themselves where they are to be rotated, in
/// every block's shared memory. All blocks do. meanwhile() is called while they are on their way.
template <typename One, typename Meanwhile>
__device__ inline void share_queries(const Args& args, int rank, const One (&raw)[kRank / kThreads],
                                     Meanwhile meanwhile) {
  Shared& s = shared();
  const int lane = thread() % 32, warp = thread() / 32;
  if (rank * kShare < args.nope) {
    constexpr int kEach = kRank / kThreads;
    const Activations x{offsetof(Shared, q_blocks), 32 * kWarps, true, false};
    quantize_lanes(x, warp, s.q[lane]);
    __syncwarp();
    const ActivationBlock block = x.block(0, warp);
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      s.parts[rank][i * kThreads + thread()] = raw[i].times(args.k_b.type, block);
  } else if (warp == 0) {
    s.rotated[rank * kShare - args.nope + lane] = s.q[lane];
  }
  pushes_from_here();
  __syncthreads();
  cluster_all();  // they have begun
  if (thread() < args.cluster && thread() != rank) {
    if (rank * kShare < args.nope) {
      s.queries_there.push_row(s.parts[rank], sizeof s.parts[rank], thread());
    } else {
      s.queries_there.push_row(s.rotated + rank * kShare - args.nope, kShare * 4, thread());
    }
  }
  meanwhile();
  s.queries_there.wait();
}

/// Queries as the cache's rows meet them. The block meets.
__device__ inline void sum_queries(const Args& args) {
  Shared& s = shared();
  // The first warps' threads take four columns each, those of the next one a pair to be rotated.
  static_assert(kRank / 4 + kRotated / 2 <= kThreads);
  const int pair = thread() - kRank / 4;
  if (pair < 0) {
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int r = 0; r < kMostInCluster; ++r) {
      if (r >= args.nope / kShare) break;
      const float4 part = reinterpret_cast<const float4*>(s.parts[r])[thread()];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    reinterpret_cast<float4*>(s.query)[thread()] = sum;
  } else if (pair < kRotated / 2) {
    const SinCos sin_cos = s.angles[pair];
    const int first = args.rope.first(pair), second = args.rope.second(pair, kRotated / 2);
    const float a = s.rotated[first], b = s.rotated[second];
    s.query[kRank + first] = a * sin_cos.cosine - b * sin_cos.sine;
    s.query[kRank + second] = a * sin_cos.sine + b * sin_cos.cosine;
  }
  __syncthreads();
}

/// This block's share of the latent queries, to where they are asked for.
__device__ inline void hand_queries(const Args& args, int head, int rank) {
  Shared& s = shared();
  if (args.split.first == nullptr) {
    for (int c = rank * kThreads + thread(); c < kWidth; c += args.cluster * kThreads)
      args.out(0, head)[c] = s.query[c];
    return;
  }
  float largest = 0;
  for (int c = thread(); c < kWidth; c += kThreads) largest = fmaxf(largest, fabsf(s.query[c]));
  largest = lane_max(largest);
  if (thread() % 32 == 0) s.partial[0][thread() / 32] = largest;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, s.partial[0][w]);
  const float unscale = query_unscale(largest), factor = 1.0f / unscale;
  if (rank == 0 && thread() == 0) args.split.unscale[head] = unscale;
  const int pair = thread() * args.cluster + rank;
  if (pair >= kWidth / 2) return;
  const float2 v = reinterpret_cast<const float2*>(s.query)[pair];
  if (args.split.second == nullptr)
    return put_query_rows(args.split.first, head, pair, v.x * factor, v.y * factor);
  args.split.put(head, pair, v.x * factor, v.y * factor);
}

/// Blocks that have a chunk of the context.
__device__ inline int attending(const Args& args, int position) {
  return min(args.cluster, position / kChunk + 1);
}

/// Attention over this block's chunks, in every block's shared memory; blocks without chunks do nothing. A
/// thread keeps two columns of the latent.
template <typename Row>
__device__ inline void attend_share(const Args& args, int rank, int position) {
  Shared& s = shared();
  if (rank >= attending(args, position)) return;
  static_assert(kRank == 2 * kThreads);
  constexpr float kNone = -INFINITY;
  const int lane = thread() % 32;
  static_assert(kChunk <= 32 && kRotated / 2 == 32);
  float largest = kNone, total = 0, x = 0, y = 0;
  for (int begin = rank * kChunk; begin <= position; begin += args.cluster * kChunk) {
    const int end = min(begin + kChunk, position + 1);
    if (begin != rank * kChunk) {  // the first chunk was fetched before
      __syncthreads();
      fetch_rows<Row, kThreads>(s.chunk, args.cache.row(args.layer, args.step.slot_of(0, begin)),
                                min(end, position) - begin);
    }
    wait_for_copies();
    // This step's row is not in the cache yet.
    if (position < end) copy_row<Row>(s.chunk + (position - begin) * Row::kBytes, s.current);
    __syncthreads();
    const int count = end - begin;
    score_rows<Row, kChunk, kWarps>(s.chunk, s.query, count, args.scale, s.weights);
    __syncthreads();
    // Every warp turns all scores into weights for itself.
    const float score = lane < kChunk ? s.weights[lane] : kNone;
    const float next = fmaxf(largest, lane_max(score)), shrink = expf(largest - next);
    const float weight = expf(score - next);  // 0 behind the last position
    largest = next;
    total = total * shrink + lane_sum(weight);
    x *= shrink, y *= shrink;
#pragma unroll 8
    for (int t = 0; t < count; ++t) {
      const float w = __shfl_sync(kWholeWarp, weight, t);
      const float2 value = Row::latent(s.chunk + t * Row::kBytes, thread());
      x += w * value.x, y += w * value.y;
    }
  }
  Sums& mine = s.sums[rank];
  reinterpret_cast<float2*>(mine.of)[thread()] = make_float2(x, y);
  if (thread() == 0) mine.largest = largest, mine.total = total;
  pushes_from_here();
  __syncthreads();
  if (thread() < args.cluster && thread() != rank) s.sums_there.push_row(&mine, sizeof mine, thread());
}

/// This block's share of the head's values, from all blocks' sums.
template <typename Rows>
__device__ inline void make_values(const Args& args, int head, int first, int blocks, Rows& v) {
  Shared& s = shared();
  const Activations x{offsetof(Shared, context), kRank, true, false};
  // A lane finds the factor of a block.
  const int lane = thread() % 32;
  const float best = lane < blocks ? s.sums[lane].largest : -INFINITY;
  const float total = lane < blocks ? s.sums[lane].total : 0.0f;
  const float part = expf(best - lane_max(best));
  const float mine = __fdividef(part, lane_sum(part * total));
  constexpr int kEach = kRank / kThreads;
  float context[kEach] = {};
#pragma unroll 4
  for (int r = 0; r < blocks; ++r) {
    const float factor = __shfl_sync(kWholeWarp, mine, r);
#pragma unroll
    for (int i = 0; i < kEach; ++i) context[i] += factor * s.sums[r].of[i * kThreads + thread()];
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) quantize_lanes(x, i * kWarps + thread() / 32, context[i]);
  __syncthreads();
  v.multiply(x, [&](int row, float value) { args.out(0, head)[first + row] = s.values[row] = value; });
  if (args.form_at == nullptr) return;
  __syncthreads();
  const int block = thread() / 32, columns = args.out.columns;
  if (block * 32 < v.count)
    quantize_lanes(args.form_at, args.out.heads * columns / 32, (head * columns + first) / 32 + block,
                   s.values[thread()]);
}

template <typename Q, typename K, typename V, typename Row>
__global__ void __launch_bounds__(kThreads, 2)
    mla_heads(const Timestamps timestamps, const __grid_constant__ Args args) {
  if (!kHasClusters) return;  // never launched there, and not worth compiling
  const PdlLink pdl(timestamps);
  Shared& s = shared();
  const int rank = static_cast<int>(cluster_rank()), head = static_cast<int>(blockIdx.x) / args.cluster;
  if (thread() == 0) s.queries_there.begin(), s.sums_there.begin();
  cluster_here();
  // The step's data was there before the first kernel began; rows of earlier positions before this step.
  const int position = __ldg(args.step.positions);
  const bool attends = args.v_b.codes != nullptr;
  // Of this block's first chunk, asked for before `position` is there; if the context is shorter, of any
  // page.
  const int last = args.step.header->pages_per_sequence * program::kPageRows - 1;
  const int64_t first_slot = attends ? args.step.slot_of(0, min(rank * kChunk, last)) : 0;
  const int q_row = static_cast<int>(args.q.row(0, int64_t{head} * (args.nope + kRotated) + rank * kShare));
  // As many blocks of a row of q as registers hold: one that is asked for after the wait is waited for.
  constexpr int kBlocks = 6;
  auto q = lane_rows<Q, kThreads, kBlocks>(args.q, kShare, [q_row](int i) { return q_row + i; });
  if (args.q.codes != nullptr) q.ask();
  if (args.q_norm != nullptr) fetch_norm<kThreads>(s.q_norm, args.q_norm, args.in.columns);
  constexpr int kEach = kRank / kThreads;
  float kv_norm[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) kv_norm[i] = __ldg(args.kv_norm + i * kThreads + thread());
  // The cluster's blocks share the rows of k_b and v_b.
  const int values = attends ? args.out.columns : 0, v_first = min(rank * args.each, values);
  const int v_row = static_cast<int>(args.v_b.row(head, v_first));
  auto v = lane_rows<V, kThreads>(args.v_b, min(args.each, values - v_first),
                                  [v_row](int i) { return v_row + i; });
  const int64_t v_bytes = code_bytes(args.v_b.type, args.v_b.columns);
  if (attends) {
    prefetch_range(args.v_b.codes + v_row * v_bytes, v.count * v_bytes);
    fetch_rows<Row, kThreads>(s.chunk, args.cache.row(args.layer, first_slot),
                              min(kChunk, position - rank * kChunk));
  }
  if (thread() % kWarps == 0)  // some threads of each warp
    s.angles[thread() / kWarps] = args.rope.sin_cos(position, thread() / kWarps, args.factors);
  K k_b[kEach];
  if (rank * kShare < args.nope) {
    const int k_blocks = args.k_b.columns / 32, first = static_cast<int>(args.k_b.row(head, 0));
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      k_b[i].load(args.k_b.type, planes_from(args.k_b), (first + i * kThreads + thread()) * k_blocks + rank);
  }
  const int blocks = attends ? attending(args, position) : 0;
  if (thread() == 0) {
    // What the others will push.
    const int latent = args.nope / kShare;
    const int latent_bytes = (latent - (rank < latent)) * kRank * 4;
    s.queries_there.expect(latent_bytes + (kRotated / kShare - (rank >= latent)) * kShare * 4);
    s.sums_there.expect((blocks - (rank < blocks)) * static_cast<int>(sizeof(Sums)));
  }
  pdl.wait();
  wait_for_copies();
  const Activations x{offsetof(Shared, x), args.in.columns, true, false};
  const NewRow row(args);
  make_queries(args, head, rank, q, x, quantize_query(args, x));
  share_queries(args, rank, k_b, [&] { row.put<Row>(args, kv_norm); });
  if (!attends) cluster_here();
  sum_queries(args);
  if (attends) {
    attend_share<Row>(args, rank, position);
    if (v.count > 0) v.ask();
    s.sums_there.wait();
    cluster_here();
    if (v.count > 0) make_values(args, head, v_first, blocks, v);
  } else {
    hand_queries(args, head, rank);
  }
  cluster_all();
}

/// The kernel for the types of q, of k_b and of v_b: of its own where files have them often.
template <typename Row>
auto kernel_for(const Args& args) {
  using quant::Type;
  using Four = TypedRaw<Type::Q4_0>;
  using FourK = TypedRaw<Type::Q4_K>;
  using Five = TypedRaw<Type::Q5_0>;
  using Eight = TypedRaw<Type::Q8_0>;
  const auto types_are = [&](Type q, Type k, Type v) {
    return (args.q.codes == nullptr || args.q.type == q) && args.k_b.type == k &&
           (args.v_b.codes == nullptr || args.v_b.type == v);
  };
  if (types_are(Type::Q4_0, Type::Q8_0, Type::Q8_0)) return mla_heads<Four, Eight, Eight, Row>;
  if (types_are(Type::Q4_K, Type::Q8_0, Type::Q8_0)) return mla_heads<FourK, Eight, Eight, Row>;
  if (types_are(Type::Q8_0, Type::Q8_0, Type::Q8_0)) return mla_heads<Eight, Eight, Eight, Row>;
  if (types_are(Type::Q4_0, Type::Q4_0, Type::Q4_0)) return mla_heads<Four, Four, Four, Row>;
  if (types_are(Type::Q4_K, Type::Q5_0, Type::Q4_K)) return mla_heads<FourK, Five, FourK, Row>;
  return mla_heads<AnyRaw, AnyRaw, AnyRaw, Row>;
}
auto kernel_of(const Args& args) {
  return args.cache.coded > 0 ? kernel_for<CodedRow>(args) : kernel_for<HalfRow>(args);
}

}  // namespace

void start_clusters(const MlaHeadsArgs& args, const Context& context) {
  // Queries alone need no room for the context.
  const size_t shared_bytes = args.v_b.codes != nullptr ? sizeof(Shared) : offsetof(Shared, sums);
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.heads * args.cluster)), dim3(kThreads),
                          static_cast<int64_t>(shared_bytes), args.cluster};
  launch(context, kernel_of(args), shape, args);
}

static_assert(sizeof(Shared) <= kClusterBytes);

}  // namespace sluice::backend::cuda
