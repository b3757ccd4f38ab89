// mla_heads for one row and a short context, and its first half, mla_query, for any context: a cluster of
// blocks takes a head from the low-rank query to its values, so that four products and the attention cost one
// launch. The blocks of a cluster share the rows of the head's matrices and the chunks of its context; what
// one makes it pushes into the others' shared memory, three times:
//
//   queries (q) | taken into latent space (k_b) | attention over this block's chunks | put together, values
//   (v_b)
//
// Every block norms the latent and turns the key for itself; the row enters the cache from the first one, and
// everybody reads it from shared memory. The cached rows of the first chunk and all weights are asked for
// before the kernel waits for its predecessor: they do not depend on it.
//
// GLM-4.7-Flash in the q4_0 mix: 6.4 MB of weights and 1,152 bytes a position, which all heads read from the
// second cache; so from about a thousand positions on kernels that read the cache once for all heads are
// better.
#include <cuda_fp16.h>

#include "backend/cuda/memory.h"
#include "backend/cuda/ops/kernels.h"
#include "backend/cuda/prim/cluster.cuh"
#include "backend/cuda/prim/dot.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/prefetch.cuh"
#include "backend/cuda/prim/rope.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kChunk = 32;      // positions; a page is some of them
constexpr int kLongest = 1024;  // positions

struct Args {
  StepView step;
  Rows<float> in, out;
  const float *q_norm, *kv, *kv_norm, *factors;
  Matrix q, k_b,
      v_b;  // q.codes null: `in` holds the queries; v_b.columns 0: `out` gets queries in latent space
  Cache cache;
  int layer, cluster, rank, turned, nope;  // turned: columns of the rotary part
  int q_lanes, k_lanes, v_lanes;
  bool q_bytes, k_bytes, v_bytes;
  float scale, epsilon;
  RopeTable rope;

  SLUICE_BOTH int width() const { return rank + turned; }
};

/// Shared memory behind the activations, in floats but for the chunk of cache rows.
struct Layout {
  int activations, queries, query, current, weights, partial, best, bytes, chunk;  // bytes from the beginning
};

SLUICE_BOTH inline int wide(int bytes) { return (bytes + 15) / 16 * 16; }

SLUICE_BOTH inline Layout layout_of(const Args& a) {
  const auto row = [](int columns, bool bytes) { return Activations::row_bytes(columns, bytes, !bytes); };
  int most = row(a.nope, a.k_bytes);
  const int v = a.v_b.columns > 0 ? row(a.rank, a.v_bytes) : 0,
            q = a.q.codes != nullptr ? row(a.in.columns, a.q_bytes) : 0;
  most = v > most ? v : most;
  most = q > most ? q : most;
  Layout l{};
  l.queries = wide(most);
  l.query = l.queries + wide((a.nope + a.turned) * 4);
  l.current = l.query + wide(a.width() * 4);
  l.weights = l.current + wide(a.width() * 4);
  l.partial = l.weights + kChunk * 4;
  l.best = l.partial + wide(a.cluster * a.rank * 4);
  l.chunk = l.best + wide(a.cluster * 8);
  l.bytes = a.v_b.columns > 0 ? l.chunk + kChunk * a.width() * 2 : l.partial;
  return l;
}

__device__ inline float* floats_at(int offset) { return reinterpret_cast<float*>(dynamic_shared(offset)); }

/// Rows [first, first + count) that this block takes of a head's `rows`.
struct Share {
  int first, count;
};
__device__ inline Share share_of(int rows, int cluster, int group) {
  const int each = ((rows + cluster - 1) / cluster + group - 1) / group * group;
  const int first = static_cast<int>(cluster_rank()) * each;
  return {first, max(0, min(each, rows - first))};
}

/// This block's rows of a head's matrix times x; put(n, product) is called by the lanes of each row, the same
/// for all.
template <typename Put>
__device__ inline void multiply_share(const Matrix& m, int64_t first_row, int rows, int lanes, int cluster,
                                      const Activations& x, Put put) {
  const int group = 32 / lanes;
  const Share share = share_of(rows, cluster, group);
  for (int at = threadIdx.x / 32 * group; at < share.count; at += kWarps * group) {
    const int in_share = at + threadIdx.x % 32 / lanes;
    const bool valid = in_share < share.count;
    const int n = share.first + in_share;
    const Sums<1> sums = dot<1>(m, first_row + n, valid ? 1 : 0, lanes, x);
    if (valid) put(n, sums.of[0], threadIdx.x % lanes);
  }
}

/// The head's rows that this block will multiply.
__device__ inline void prefetch_share(const Matrix& m, int64_t first_row, int rows, int lanes, int cluster) {
  const Share share = share_of(rows, cluster, 32 / lanes);
  const int64_t row = code_bytes(m.type, m.columns);
  prefetch_range(m.codes + (first_row + share.first) * row, share.count * row);
}

/// Copies cached rows begin to end of this sequence (in one page) to shared memory, asynchronously.
__device__ inline void fetch_chunk(const Args& args, int offset, int begin, int end) {
  if (end <= begin) return;
  const char* page = reinterpret_cast<const char*>(args.cache.row(args.layer, args.step.slot_of(0, begin)));
  const int bytes = (end - begin) * args.width() * 2;
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(dynamic_shared(offset)));
  for (int at = threadIdx.x * 16; at < bytes; at += kThreads * 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + at), "l"(page + at) : "memory");
  }
}
__device__ inline void wait_for_chunk() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// The normed latent and the turned key of this row, as the cache holds them: in shared memory, and from the
/// first block in the cache.
__device__ inline void make_current(const Args& args, const Layout& l, int position, float* partial) {
  float* current = floats_at(l.current);
  float squares = 0;
  for (int c = threadIdx.x; c < args.rank; c += kThreads) {
    const float v = __ldcg(args.kv + c);
    squares += v * v;
  }
  const float inverse =
      1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(args.rank) + args.epsilon);
  const auto rounded = [](float v) { return __half2float(__float2half_rn(v)); };
  for (int c = threadIdx.x; c < args.rank; c += kThreads) {
    current[c] = rounded(__ldcg(args.kv + c) * inverse * __ldg(args.kv_norm + c));
  }
  const int half = args.turned / 2;
  for (int i = threadIdx.x; i < half; i += kThreads) {
    const Turn turn = args.rope.turn(position, i, args.factors);
    const int first = args.rope.first(i), second = args.rope.second(i, half);
    const float a = __ldcg(args.kv + args.rank + first), b = __ldcg(args.kv + args.rank + second);
    current[args.rank + first] = rounded(a * turn.cosine - b * turn.sine);
    current[args.rank + second] = rounded(a * turn.sine + b * turn.cosine);
  }
  __syncthreads();
  const int slot = __ldcg(args.step.slots);
  if (blockIdx.x != 0 || slot < 0) return;
  uint16_t* to = args.cache.row(args.layer, slot);
  for (int c = threadIdx.x; c < args.width(); c += kThreads)
    to[c] = __half_as_ushort(__float2half_rn(current[c]));
}

/// Queries of this head, in every block's shared memory. The cluster meets.
__device__ inline void make_queries(const Args& args, const Layout& l, int head, float* partial) {
  float* queries = floats_at(l.queries);
  const int columns = args.nope + args.turned;
  if (args.q.codes == nullptr) {
    for (int c = threadIdx.x; c < columns; c += kThreads) queries[c] = __ldcg(args.in(0, head) + c);
    __syncthreads();
    return;
  }
  const Activations x{0, args.in.columns, args.q_bytes, !args.q_bytes};
  x.fill(0, args.in(0), args.q_norm, args.epsilon, partial);
  __syncthreads();
  multiply_share(args.q, args.q.row(0, int64_t{head} * columns), columns, args.q_lanes, args.cluster, x,
                 [&](int n, float value, int lane) {
                   for (int r = lane; r < args.cluster; r += args.q_lanes)
                     store_at_rank(queries + n, r, value);
                 });
  cluster_meet();
}

/// Queries in latent space, in every block's shared memory. The cluster meets.
__device__ inline void make_latent_queries(const Args& args, const Layout& l, int head, int position) {
  const float* queries = floats_at(l.queries);
  float* query = floats_at(l.query);
  const Activations x{0, args.nope, args.k_bytes, !args.k_bytes};
  x.fill_with(0, [&](int at) { return reinterpret_cast<const float4*>(queries)[at]; });
  const int half = args.turned / 2;
  for (int i = threadIdx.x; i < half; i += kThreads) {
    const Turn turn = args.rope.turn(position, i, args.factors);
    const int first = args.rope.first(i), second = args.rope.second(i, half);
    const float a = queries[args.nope + first], b = queries[args.nope + second];
    query[args.rank + first] = a * turn.cosine - b * turn.sine;
    query[args.rank + second] = a * turn.sine + b * turn.cosine;
  }
  __syncthreads();
  multiply_share(args.k_b, args.k_b.row(head, 0), args.rank, args.k_lanes, args.cluster, x,
                 [&](int n, float value, int lane) {
                   for (int r = lane; r < args.cluster; r += args.k_lanes) store_at_rank(query + n, r, value);
                 });
  cluster_meet();
}

/// Scores of a chunk's rows, to shared memory: a warp takes every kWarps-th row.
__device__ inline void score_chunk(const Args& args, const Layout& l, int begin, int end, int position) {
  const int lane = threadIdx.x % 32;
  const auto* chunk = reinterpret_cast<const __half2*>(dynamic_shared(l.chunk));
  const auto* query = reinterpret_cast<const float2*>(floats_at(l.query));
  const auto* current = reinterpret_cast<const float2*>(floats_at(l.current));
  for (int t = begin + threadIdx.x / 32; t < end; t += kWarps) {
    float score = 0;
    for (int c = lane; c < args.width() / 2; c += 32) {
      const float2 key =
          t == position ? current[c] : __half22float2(chunk[(t - begin) * (args.width() / 2) + c]);
      score += key.x * query[c].x + key.y * query[c].y;
    }
    score = lane_sum(score);
    if (lane == 0) floats_at(l.weights)[t - begin] = score * args.scale;
  }
}

/// Attention over this block's chunks: its unnormalised sums and (largest score, total weight), in every
/// block's shared memory. The cluster meets. A thread keeps two columns of the latent, and of several groups
/// of threads each takes every so many rows.
__device__ inline void attend_share(const Args& args, const Layout& l, int position) {
  constexpr float kNone = -INFINITY;
  const int pairs = args.rank / 2, groups = kThreads / pairs;
  const int pair = threadIdx.x % pairs, group = threadIdx.x / pairs;
  const auto rank = static_cast<int>(cluster_rank());
  const float* weights = floats_at(l.weights);
  const auto* chunk = reinterpret_cast<const __half2*>(dynamic_shared(l.chunk));
  const auto* current = reinterpret_cast<const float2*>(floats_at(l.current));
  float largest = kNone, total = 0, x = 0, y = 0;
  for (int begin = rank * kChunk; begin <= position; begin += args.cluster * kChunk) {
    const int end = min(begin + kChunk, position + 1);
    if (begin != rank * kChunk) {  // the first chunk was fetched before
      __syncthreads();
      fetch_chunk(args, l.chunk, begin, min(end, position));
    }
    wait_for_chunk();
    __syncthreads();
    score_chunk(args, l, begin, end, position);
    __syncthreads();
    // Every warp finds the largest score for itself; then a thread a position turns it into a weight.
    const int count = end - begin, lane = threadIdx.x % 32;
    const float score = lane < count ? weights[lane] : kNone;
    const float next = fmaxf(largest, lane_max(score)), shrink = expf(largest - next);
    const float weight = expf(score - next);  // 0 behind the last position
    largest = next;
    total = total * shrink + lane_sum(weight);
    x *= shrink, y *= shrink;
#pragma unroll 4
    for (int t = group; t < count; t += groups) {
      const float w = __shfl_sync(kWholeWarp, weight, t);
      const float2 value =
          begin + t == position ? current[pair] : __half22float2(chunk[t * (args.width() / 2) + pair]);
      x += w * value.x, y += w * value.y;
    }
  }
  // Groups are put together in this block's place of `partial`, which is then pushed to the others.
  float* partial = floats_at(l.partial) + rank * args.rank;
  for (int g = 0; g < groups; ++g) {
    if (g == group) {
      partial[2 * pair] = x + (g > 0 ? partial[2 * pair] : 0.0f);
      partial[2 * pair + 1] = y + (g > 0 ? partial[2 * pair + 1] : 0.0f);
    }
    __syncthreads();
  }
  for (int r = 0; r < args.cluster; ++r) {
    if (r == rank) continue;
    for (int c = threadIdx.x; c < args.rank; c += kThreads) store_at_rank(partial + c, r, partial[c]);
  }
  if (threadIdx.x < args.cluster) {
    store_at_rank(floats_at(l.best) + 2 * rank, threadIdx.x, largest);
    store_at_rank(floats_at(l.best) + 2 * rank + 1, threadIdx.x, total);
  }
  cluster_meet();
}

/// This block's share of the head's values, from all blocks' sums.
__device__ inline void make_values(const Args& args, const Layout& l, int head) {
  const float *best = floats_at(l.best), *partial = floats_at(l.partial);
  float largest = -INFINITY, total = 0;
  for (int r = 0; r < args.cluster; ++r) largest = fmaxf(largest, best[2 * r]);
  for (int r = 0; r < args.cluster; ++r) total += expf(best[2 * r] - largest) * best[2 * r + 1];
  const Activations x{0, args.rank, args.v_bytes, !args.v_bytes};
  x.fill_with(0, [&](int at) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int r = 0; r < args.cluster; ++r) {
      if (best[2 * r + 1] == 0) continue;
      const float factor = expf(best[2 * r] - largest) / total;
      const float4 v = reinterpret_cast<const float4*>(partial + r * args.rank)[at];
      sum.x += factor * v.x, sum.y += factor * v.y, sum.z += factor * v.z, sum.w += factor * v.w;
    }
    return sum;
  });
  __syncthreads();
  multiply_share(args.v_b, args.v_b.row(head, 0), args.out.columns, args.v_lanes, args.cluster, x,
                 [&](int n, float value, int lane) {
                   if (lane == 0) args.out(0, head)[n] = value;
                 });
}

__global__ void __launch_bounds__(kThreads, 2) mla_heads(const __grid_constant__ Args args) {
  __shared__ float partial[33];
  let_next_start();
  const int head = static_cast<int>(blockIdx.x) / args.cluster;
  const Layout l = layout_of(args);
  // The step's data was there before the first kernel began; rows of earlier positions before this step.
  const int position = __ldcg(args.step.positions);
  const bool attends = args.v_b.columns > 0;
  const int begin = static_cast<int>(cluster_rank()) * kChunk;
  if (attends) fetch_chunk(args, l.chunk, begin, min(begin + kChunk, position));
  if (args.q.codes != nullptr) {
    prefetch_share(args.q, args.q.row(0, int64_t{head} * (args.nope + args.turned)), args.nope + args.turned,
                   args.q_lanes, args.cluster);
  }
  prefetch_share(args.k_b, args.k_b.row(head, 0), args.rank, args.k_lanes, args.cluster);
  if (attends) prefetch_share(args.v_b, args.v_b.row(head, 0), args.out.columns, args.v_lanes, args.cluster);
  wait_for_previous();
  make_current(args, l, position, partial);
  cluster_meet();  // all blocks have begun: their shared memory is there
  make_queries(args, l, head, partial);
  make_latent_queries(args, l, head, position);
  if (!attends) {
    if (cluster_rank() != 0) return;
    for (int c = threadIdx.x; c < args.width(); c += kThreads) args.out(0, head)[c] = floats_at(l.query)[c];
    return;
  }
  attend_share(args, l, position);
  make_values(args, l, head);
}

/// v_b: kNoTensor for mla_query.
Args args_of(const Program& program, const MlaQuery& op, TensorId v_b) {
  Args args{};
  args.rank = static_cast<int>(op.rank(program)), args.nope = static_cast<int>(op.nope(program));
  args.turned = static_cast<int>(op.rope_columns(program));
  args.in.columns = static_cast<int>(program[op.in.id].columns());
  const auto is_blocked = [&](TensorId id) { return find_format(program[id].type) != nullptr; };
  args.q_bytes = op.q && is_blocked(op.q.id), args.k_bytes = is_blocked(op.k_b.id);
  if (v_b != kNoTensor)
    args.v_bytes = is_blocked(v_b), args.v_b.columns = static_cast<int>(program[v_b].columns());
  args.cluster = kMostInCluster;
  return args;
}

void start(const Program& program, const MlaQuery& op, TensorId v_b, TensorId out, float scale,
           const Context& context) {
  const Memory& memory = context.memory;
  Args args = args_of(program, op, v_b);
  args.step = context.step;
  args.in = memory.rows(op.in.id), args.out = memory.rows(out);
  args.kv = memory.rows(op.kv.id).data;
  args.q_norm = memory.vector(op.q_norm.id), args.kv_norm = memory.vector(op.kv_norm.id);
  args.factors = memory.vector(op.factors.id);
  if (op.q) args.q = memory.matrix(op.q.id), args.q_lanes = lanes_for(args.q.type, args.q.columns);
  args.k_b = memory.matrix(op.k_b.id), args.k_lanes = lanes_for(args.k_b.type, args.k_b.columns);
  if (v_b != kNoTensor)
    args.v_b = memory.matrix(v_b), args.v_lanes = lanes_for(args.v_b.type, args.v_b.columns);
  args.cache = memory.cache();
  args.layer = op.cache_layer, args.scale = scale, args.epsilon = op.epsilon;
  args.rope = rope_table(op.rope, args.turned);
  // As many blocks a head as the device holds at two on a multiprocessor.
  while (args.cluster > 1 && args.cluster * args.out.heads > 2 * context.processors) args.cluster /= 2;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.out.heads * args.cluster)), dim3(kThreads),
                          layout_of(args).bytes, args.cluster};
  launch(context, mla_heads, shape, args);
}

bool serves(const Program& program, const MlaQuery& op, TensorId v_b, const Sizes& sizes) {
  if (sizes.architecture < 90 || sizes.rows > 1 || op.k_b_reduce != Reduce::Columns) return false;
  Args args = args_of(program, op, v_b);
  static const uint8_t kThere = 0;
  if (op.q) args.q.codes = &kThere;
  const bool shapes = args.rank >= 64 && kThreads % (args.rank / 2) == 0 && args.nope % 4 == 0 &&
                      args.turned / 2 <= RopeTable::kMostPairs && args.width() % 8 == 0;
  return shapes && layout_of(args).bytes <= 2 * kMostShared;
}

void launch_mla_query(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MlaQuery>(record.args);
  start(program, op, kNoTensor, op.out.id, 0, context);
}
void launch_mla_heads(const Program& program, const Op& record, const Context& context) {
  const auto& op = std::get<MlaHeads>(record.args);
  start(program, op.query, op.v_b.id, op.out.id, op.scale, context);
}
bool serves_mla_query(const Program& program, const Op& record, const Sizes& sizes) {
  return serves(program, std::get<MlaQuery>(record.args), kNoTensor, sizes);
}
bool serves_mla_heads(const Program& program, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<MlaHeads>(record.args);
  return sizes.longest <= kLongest && serves(program, op.query, op.v_b.id, sizes);
}

}  // namespace

const Kernel kMlaQuery{"queries, a cluster a head", serves_mla_query, launch_mla_query};
const Kernel kMlaHeads{"a cluster a head", serves_mla_heads, launch_mla_heads};

}  // namespace sluice::backend::cuda
