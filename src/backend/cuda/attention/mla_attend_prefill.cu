// mla_attend of many rows (prefill, large batches) by wgmma (sm_90a): a thread block takes 64 queries (the
// heads of neighbouring rows of a sequence, or of one row) over their whole context, page by page, with a
// running softmax (online softmax: Milakov and Gimelshein 2018; the split of the output's columns between two
// warpgroups as in FlashMLA).
//
// A page is 64 cache rows, keys and values at once, swizzled in shared memory as nine blocks of 64 columns.
// The first warpgroup takes the scores, their softmax and the weights times the left half of the 512 value
// columns; the second one takes the right half, while the first is at the next page's scores (the sums of 64
// x 256 are 128 registers a thread: so there have to be two). A third group brings the next page meanwhile. A
// row's bits depend on its own context alone: pages are the same steps for everybody, and what a row does not
// see has weight 0.
//
// Of fewer rows, neighbours in one sequence, a thread block takes a chunk of the context that they share, and
// join_chunks puts chunks together. Those are of the last row's context, so rows' bits depend on it, too.
//
// Bound by the tensor cores: a page takes 64 x 64 x 1,088 products, 2,176 cycles of them, with nothing beside
// the softmax.
#include <cuda_fp16.h>

#include "backend/cuda/attention/mla_attend.cuh"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/prim/wgmma.cuh"

namespace sluice::backend::cuda {
namespace {

using program::kPageRows;

constexpr int kThreads = 384, kQueries = kMlaTileQueries;
constexpr int kBlocks = kMlaWidth / 64, kBlockBytes = 64 * 128;  // of 64 columns
constexpr int kPageBytes = kBlocks * kBlockBytes;
constexpr int kSharedBytes = 3 * kPageBytes + kBlockBytes + 2 * kQueries * 4 + 64 + 1024;

#ifdef SLUICE_WGMMA

/// Where 16 bytes of a row lie in a block of 64 columns.
__device__ __forceinline__ uint32_t swizzled(int row, int unit) {
  return static_cast<uint32_t>(row * 128 + ((unit ^ row) & 7) * 16);
}

__device__ __forceinline__ void store_shared(uint32_t at, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Scaled to halves, a warp a query.
__device__ __forceinline__ void bring_queries(const MlaArgs& p, const Queries& q, char* to, float* factor) {
  const int lane = threadIdx.x % 32;
  for (int i = threadIdx.x / 32; i < kQueries; i += 8) {
    const int query = q.first_query + min(i, q.count - 1);
    const float* from = p.q(q.first_row + query / p.q.heads, query % p.q.heads);
    float2 v[kBlocks];
    float largest = 0;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      v[b] = *reinterpret_cast<const float2*>(from + b * 64 + 2 * lane);
      largest = fmaxf(largest, fmaxf(fabsf(v[b].x), fabsf(v[b].y)));
    }
    const float unscale = query_unscale(lane_max(largest)), scale = 1.0f / unscale;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      *reinterpret_cast<uint32_t*>(to + b * kBlockBytes + swizzled(i, lane / 4) + lane % 4 * 4) =
          pack_halves(v[b].x * scale, v[b].y * scale);
    }
    if (lane == 0) factor[i] = unscale * p.scale_log2;
  }
  fence_async();
}

/// The positions that a block takes of its queries' context, whole pages but for the last one.
struct Chunk {
  int begin, end;
  int number = -1;  ///< of several that are put together later; -1: it is the whole context

  __device__ __forceinline__ int pages() const { return (end - begin + kPageRows - 1) / kPageRows; }
};

/// Waits for the launch before as late as may be: before the first page that has rows of this step. Only the
/// last chunks of a context have such.
struct WaitOnce {
  const PdlLink& pdl;
  int before;  ///< positions below it are there from earlier steps; 0: nothing is known
  bool waits = true;

  __device__ __forceinline__ void operator()(int end) {
    if (!waits || end <= before) return;
    pdl.wait();
    waits = false;
  }
};

/// The third group: page after page into two buffers. Thread 8 r + u takes unit u of every block of rows r, r
/// + 16, ..., whose place within a block is the same for all.
__device__ __forceinline__ void bring_pages(const MlaArgs& p, const Queries& q, const Chunk& chunk,
                                            uint32_t buffers, uint32_t full, uint32_t empty, WaitOnce wait) {
  const int thread = threadIdx.x - 256, row = thread / 8, unit = thread % 8;
  const uint32_t place = buffers + swizzled(row, unit);
  for (int from = chunk.begin, i = 0; from < chunk.end; from += kPageRows, ++i) {
    const char* page = p.cache.row(p.layer, p.step.slot_of(q.first_row, from)) + unit * 16;
    const int count = min(kPageRows, chunk.end - from);
    const uint32_t to = place + i % 2 * kPageBytes;
    wait(from + count);
    barrier_wait(empty + 8 * (i % 2), (i / 2 & 1) ^ 1);
#pragma unroll
    for (int r = 0; r < kPageRows; r += 16) {
      const bool there = row + r < count;
      const char* const source = page + (there ? row + r : 0) * kMlaWidth * 2;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) copy_async(to + r * 128 + b * kBlockBytes, source + b * 128, there);
    }
    commit_copies();
    wait_copies<0>();
    fence_async();
    barrier_arrive(full + 8 * (i % 2));
  }
}

/// The same of rows in eight bits: a thread takes four times sixteen codes of a row at once, through
/// registers; what is binary16 is copied.
__device__ __forceinline__ void bring_coded_pages(const MlaArgs& p, const Queries& q, const Chunk& chunk,
                                                  uint32_t buffers, uint32_t full, uint32_t empty,
                                                  WaitOnce wait) {
  const int thread = threadIdx.x - 256, row = thread / 8, unit = thread % 8;
  // Sixteen codes are two units of a block; those of the next turn lie two blocks further on.
  const uint32_t low = buffers + unit / 4 * kBlockBytes + swizzled(row, unit % 4 * 2);
  const uint32_t high = buffers + unit / 4 * kBlockBytes + swizzled(row, unit % 4 * 2 + 1);
  const uint32_t exact = buffers + (kBlocks - 1) * kBlockBytes + swizzled(row, unit);
  for (int from = chunk.begin, i = 0; from < chunk.end; from += kPageRows, ++i) {
    const char* page = p.cache.row(p.layer, p.step.slot_of(q.first_row, from));
    const int count = min(kPageRows, chunk.end - from);
    const uint32_t to = i % 2 * kPageBytes;
    wait(from + count);
    barrier_wait(empty + 8 * (i % 2), (i / 2 & 1) ^ 1);
#pragma unroll
    for (int r = 0; r < kPageRows; r += 16) {
      const bool there = row + r < count;
      const char* const source = page + (there ? row + r : 0) * kMlaQ8Bytes;
      copy_async(exact + to + r * 128, source + kMlaQ8Exact + unit * 16, there);
      uint4 codes[4];
      __half scales[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        codes[k] = __ldcg(reinterpret_cast<const uint4*>(source) + unit + 8 * k);
        scales[k] = __ushort_as_half(
            __ldcg(reinterpret_cast<const unsigned short*>(source + kMlaQ8Scales) + unit / 2 + 4 * k));
      }
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const SixteenHalves numbers = halves_of_codes(codes[k], there ? scales[k] : __ushort_as_half(0));
        store_shared(low + to + r * 128 + 2 * k * kBlockBytes, numbers.low);
        store_shared(high + to + r * 128 + 2 * k * kBlockBytes, numbers.high);
      }
    }
    commit_copies();
    wait_copies<0>();
    fence_async();
    barrier_arrive(full + 8 * (i % 2));
  }
}

/// Descriptor of [16, 256] values with their columns together, which are taken rotated: blocks of 64 columns
/// lie kBlockBytes apart, groups of eight rows 1,024 bytes.
__device__ __forceinline__ uint64_t rows_descriptor(uint32_t address) {
  return static_cast<uint64_t>((address & 0x3FFFF) >> 4) | (static_cast<uint64_t>(kBlockBytes >> 4) << 16) |
         (uint64_t{1024 >> 4} << 32) | (uint64_t{1} << 62);
}

/// What the two groups share besides pages: the barriers are complete when weights are there, and when they
/// are used.
struct Exchange {
  char* weights;  ///< [64 queries][64 positions], halves, swizzled
  float* shrink;  ///< [64]: what sums have to be multiplied by before this page's are added; at last 1 / all
                  ///< weights
  uint32_t ready, used;
};

/// Sums times the weights of a page, for this thread's two rows.
__device__ __forceinline__ void scale_rows(float (&sum)[32][4], float low, float high) {
#pragma unroll
  for (int n = 0; n < 32; ++n) sum[n][0] *= low, sum[n][1] *= low, sum[n][2] *= high, sum[n][3] *= high;
}

/// A query's place among the parts of a row's contexts.
__device__ __forceinline__ int64_t part_of_query(const MlaArgs& p, const Chunk& chunk, int query) {
  const int row = query / p.q.heads;
  return (int64_t{row} * p.most_chunks + chunk.number) * p.q.heads + query - row * p.q.heads;
}

/// Writes this thread's part of the result, or of a chunk: 256 columns of two queries.
template <bool kChunks>
__device__ __forceinline__ void write_rows(const MlaArgs& p, const Queries& q, const Chunk& chunk,
                                           const float (&sum)[32][4], int first_column, const int (&mine)[2],
                                           float low, float high) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    if (mine[h] >= q.count) continue;
    const int query = q.first_query + mine[h];
    const float factor = h == 0 ? low : high;
    float* to = p.out(q.first_row + query / p.q.heads, query % p.q.heads);
    if (kChunks && chunk.number >= 0) to = p.parts + part_of_query(p, chunk, query) * kMlaRank;
    to += first_column + 2 * t;
#pragma unroll
    for (int n = 0; n < 32; ++n) {
      *reinterpret_cast<float2*>(to + n * 8) = {sum[n][2 * h] * factor, sum[n][2 * h + 1] * factor};
    }
  }
}

/// The first group: scores, weights, left half.
template <bool kChunks>
__device__ __forceinline__ void attend_left(const MlaArgs& p, const Queries& q, const Chunk& chunk,
                                            uint32_t queries, uint32_t full, uint32_t empty,
                                            const Exchange& x, const float* factors) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4, t = lane % 4;
  const int mine[2] = {warp * 16 + g, warp * 16 + g + 8};
  int limit[2];
  float factor[2], largest[2] = {-INFINITY, -INFINITY}, all[2] = {0, 0};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int query = q.first_query + mine[h];
    limit[h] = mine[h] < q.count ? p.step.positions[q.first_row + query / p.q.heads] + 1 : 0;
    factor[h] = factors[mine[h]];
  }
  const uint64_t first_query = matrix_descriptor(queries, 1024);
  float sum[32][4];
#pragma unroll
  for (int i = 0; i < 128; ++i) sum[i / 4][i % 4] = 0;

  for (int from = chunk.begin, i = 0; from < chunk.end; from += kPageRows, ++i) {
    const uint32_t page = queries + (1 + i % 2) * kPageBytes;
    barrier_wait(full + 8 * (i % 2), i / 2 & 1);
    float score[8][4];
#pragma unroll
    for (int k = 0; k < 32; ++k) score[k / 4][k % 4] = 0;
    const uint64_t keys = matrix_descriptor(page, 1024);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kMlaWidth / 16; ++s) {
      const int at = (s / 4 * kBlockBytes + s % 4 * 32) >> 4;
      wgmma_64x16_shared(score, first_query + at, keys + at);
    }
    wgmma_commit();
    wgmma_wait<0>();

    float keep[2];
    uint32_t weight[4][4];  // as the first operand
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float top = largest[h];
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          float& value = score[n][2 * h + k];
          value = from + n * 8 + 2 * t + k < limit[h] ? value * factor[h] : -INFINITY;
          top = fmaxf(top, value);
        }
      }
      top = lane_max(top, 4);
      // A row may see nothing of a chunk, which is for rows behind it.
      if (kChunks && top == -INFINITY) top = -0x1p+100f;
      keep[h] = exp2f(largest[h] - top);
      largest[h] = top;
      float total = 0;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        const float a = exp2f(score[n][2 * h] - top), b = exp2f(score[n][2 * h + 1] - top);
        total += a + b;
        weight[n / 2][n % 2 * 2 + h] = pack_halves(a, b);
      }
      all[h] = all[h] * keep[h] + total;
    }
    barrier_wait(x.used, (i & 1) ^ 1);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        *reinterpret_cast<uint32_t*>(x.weights + swizzled(mine[h], n) + 4 * t) = weight[n / 2][n % 2 * 2 + h];
      }
      if (t == 0) x.shrink[mine[h]] = keep[h];
    }
    fence_async();
    barrier_arrive(x.ready);
    scale_rows(sum, keep[0], keep[1]);
    const uint64_t values = rows_descriptor(page);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kPageRows / 16; ++s) wgmma_64x16_rows(sum, weight[s], values + s * (2048 >> 4));
    wgmma_commit();
    wgmma_wait<0>();
    if (threadIdx.x == 0) barrier_arrive(empty + 8 * (i % 2));
  }

  barrier_wait(x.used, (chunk.pages() & 1) ^ 1);
  float inverse[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    all[h] += __shfl_xor_sync(kWholeWarp, all[h], 1);
    all[h] += __shfl_xor_sync(kWholeWarp, all[h], 2);
    inverse[h] = 1.0f / all[h];
    if (kChunks && chunk.number >= 0) {
      inverse[h] = 1;
      if (t == 0 && mine[h] < q.count)
        p.weights[part_of_query(p, chunk, q.first_query + mine[h])] = {largest[h], all[h]};
    }
    if (t == 0) x.shrink[mine[h]] = inverse[h];
  }
  barrier_arrive(x.ready);
  write_rows<kChunks>(p, q, chunk, sum, 0, mine, inverse[0], inverse[1]);
}

/// The second group: the right half, a page behind.
template <bool kChunks>
__device__ __forceinline__ void attend_right(const MlaArgs& p, const Queries& q, const Chunk& chunk,
                                             uint32_t queries, uint32_t empty, const Exchange& x) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4, g = lane / 4;
  const int mine[2] = {warp * 16 + g, warp * 16 + g + 8};
  const uint64_t first_weight = matrix_descriptor(shared_address(x.weights), 1024);
  float sum[32][4];
#pragma unroll
  for (int i = 0; i < 128; ++i) sum[i / 4][i % 4] = 0;
  int i = 0;
  for (int from = chunk.begin; from < chunk.end; from += kPageRows, ++i) {
    const uint32_t page = queries + (1 + i % 2) * kPageBytes;
    barrier_wait(x.ready, i & 1);
    scale_rows(sum, x.shrink[mine[0]], x.shrink[mine[1]]);
    const uint64_t values = rows_descriptor(page + 4 * kBlockBytes);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < kPageRows / 16; ++s) {
      wgmma_64x16_rows(sum, first_weight + s * (32 >> 4), values + s * (2048 >> 4));
    }
    wgmma_commit();
    wgmma_wait<0>();
    barrier_arrive(x.used);
    if (threadIdx.x % 128 == 0) barrier_arrive(empty + 8 * (i % 2));
  }
  barrier_wait(x.ready, i & 1);
  write_rows<kChunks>(p, q, chunk, sum, 256, mine, x.shrink[mine[0]], x.shrink[mine[1]]);
}

#endif

#ifdef SLUICE_WGMMA
/// A tile of all queries of a step of one sequence, and a chunk of their context.
__device__ __forceinline__ Queries queries_together(const MlaArgs& p, int tile, int number, Chunk& chunk) {
  const int rows = p.step.header->rows, first = tile * kQueries;
  const Queries q{0, first, min(kQueries, rows * p.q.heads - first), p.length_of(0)};
  const int each = chunk_of(q.longest, p.most_chunks);
  chunk = {number * each, min((number + 1) * each, q.longest), q.longest > each ? number : -1};
  return q;
}
#endif

/// kChunks: all rows are of one sequence (MlaArgs::together), grid: (tiles of their queries, chunks).
template <bool kCoded, bool kChunks>
__global__ void __launch_bounds__(kThreads, 1)
    mla_attend_prefill_kernel(const Timestamps timestamps, const MlaArgs p, int tiles) {
#ifdef SLUICE_WGMMA
  // A thread's registers by group; the block begins with 168 for each, and has no more to give.
  constexpr int kBringing = kCoded ? 56 : 40, kAttending = kCoded ? 224 : 232;
  static_assert(kBringing + 2 * kAttending <= 3 * 168);
  extern __shared__ char prefill_shared[];
  char* const shared = prefill_shared + (1024 - shared_address(prefill_shared) % 1024) % 1024;
  char* const weights = shared + 3 * kPageBytes;
  float* const shrink = reinterpret_cast<float*>(weights + kBlockBytes);
  float* const factors = shrink + kQueries;
  const uint32_t queries = shared_address(shared), full = shared_address(factors + kQueries),
                 empty = full + 16;
  const Exchange exchange{weights, shrink, full + 32, full + 40};
  const PdlLink pdl(timestamps);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) barrier_init(full + 8 * i, 128), barrier_init(empty + 8 * i, 2);
    barrier_init(exchange.ready, 128), barrier_init(exchange.used, 128);
    barrier_init_fence();
  }
  __syncthreads();
  // Whose queries, and where their page lies, is known before the kernels before have ended. Later rows see
  // more: they begin first.
  Chunk chunk{};
  Queries q;
  if constexpr (kChunks) {
    q = queries_together(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y), chunk);
  } else {
    q = queries_of(p, kQueries, static_cast<int>(gridDim.x - 1 - blockIdx.x), tiles);
    chunk.end = q.longest;
  }
  if (q.count <= 0 || chunk.begin >= chunk.end) return pdl.wait();
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kBringing));
    const WaitOnce wait{pdl, kChunks ? p.step.positions[0] : 0};
    return kCoded ? bring_coded_pages(p, q, chunk, queries + kPageBytes, full, empty, wait)
                  : bring_pages(p, q, chunk, queries + kPageBytes, full, empty, wait);
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kAttending));
  pdl.wait();
  bring_queries(p, q, shared, factors);
  asm volatile("bar.sync 1, 256;" ::: "memory");
  if (threadIdx.x < 128) {
    attend_left<kChunks>(p, q, chunk, queries, full, empty, exchange, factors);
  } else {
    attend_right<kChunks>(p, q, chunk, queries, empty, exchange);
  }
#endif
}

}  // namespace

void mla_attend_prefill(const MlaArgs& args, const Context& context) {
  const int tiles = tiles_of_group(args.q.heads, kQueries);
  const int64_t groups = (context.step_rows + kGroupRows - 1) / kGroupRows;
  launch(
      context,
      args.cache.coded > 0 ? mla_attend_prefill_kernel<true, false> : mla_attend_prefill_kernel<false, false>,
      {dim3(static_cast<unsigned>(groups * tiles)), dim3(kThreads), kSharedBytes}, args, tiles);
}

void attend_together(const MlaArgs& args, const Context& context) {
  const int64_t tiles = (context.step_rows * args.q.heads + kQueries - 1) / kQueries;
  const int64_t pages = (std::max<int64_t>(1, context.longest) + kPageRows - 1) / kPageRows;
  const int64_t chunks = std::min<int64_t>(args.most_chunks, pages);
  LaunchShape shape{dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(chunks)), dim3(kThreads),
                    kSharedBytes};
  shape.late = true;  // 8 rows of GLM-4.7-Flash behind 11,400 positions 47.2 -> 42.2 us a layer (H200)
  launch(
      context,
      args.cache.coded > 0 ? mla_attend_prefill_kernel<true, true> : mla_attend_prefill_kernel<false, true>,
      shape, args, 0);
}

}  // namespace sluice::backend::cuda
