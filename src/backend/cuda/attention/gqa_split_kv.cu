// Grouped attention of rows that attend by themselves (attention/gqa.cuh): answers, and stretches of few
// rows. A thread block takes the heads of a group of a row over a chunk of its context (split-KV), whole
// pages. Each of its four warps takes a quarter of every page with a running softmax of its own (online
// softmax: Milakov and Gimelshein 2018), its keys and values in a ring of its own (cp.async), so that no warp
// waits for another one before the end of the chunk; then the four meet in shared memory. join_chunks puts
// chunks together.
//
// What earlier steps have left in the cache is asked for before the kernels before this one have ended.
//
// Steps of few rows come with heads that nobody has made ready (MadeHeads): every block norms and rotates its
// group's queries, and those new keys that its chunk has, straight from the products. They are the same bits
// that gqa_query would have left.
//
// Bound by the bandwidth of keys and values, once a row and group.
#include "backend/cuda/attention/gqa_split_kv.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

using namespace split_kv;

constexpr int kMostMarks = kMostAttending / 32;

/// The second halves of the queries, which all warps have alike: of many columns in shared memory, since they
/// would leave a warp no registers for its sums.
template <int kColumns>
struct QueryRests {
  static constexpr bool kKept = kColumns > 128;
  uint4 of[kKept ? kColumns / 16 : 1][32];

  /// The block meets.
  __device__ __forceinline__ void keep(const QueryOperands<kColumns, true>& query) {
    if constexpr (kKept) {
      if (threadIdx.x < 32) {
#pragma unroll
        for (int s = 0; s < kColumns / 16; ++s)
          of[s][threadIdx.x] = {query.rest[s][0], query.rest[s][1], query.rest[s][2], query.rest[s][3]};
      }
      __syncthreads();
    }
  }
  __device__ __forceinline__ void load(uint32_t (&rest)[4], const QueryOperands<kColumns, true>& query,
                                       int s) const {
    uint4 four{query.rest[s][0], query.rest[s][1], query.rest[s][2], query.rest[s][3]};
    if constexpr (kKept) four = of[s][threadIdx.x % 32];
    rest[0] = four.x, rest[1] = four.y, rest[2] = four.z, rest[3] = four.w;
  }
};

/// A warp's softmax and sums over its pieces.
template <int kColumns, bool kCoded, typename Heads>
__device__ __forceinline__ void attend(Pieces<kColumns, kCoded>& pieces, const Heads& heads,
                                       const QueryOperands<kColumns, true>& query,
                                       const QueryRests<kColumns>& rests, TwoRows<kPiece, kColumns>& rows) {
  using Halves = HalfRows<kColumns>;
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < pieces.count; ++i) {
    const uint32_t keys = pieces.halves(i), values = keys + Shape<kColumns, kCoded>::kHalfBytes;
    pieces.bring();
    heads.put(pieces.first + i * kPageRows, keys);
    float score[2][4] = {}, rest[2][4] = {};
#pragma unroll
    for (int s = 0; s < kColumns / 16; ++s) {
      uint32_t key[4];  // positions 0..7 columns 0..7 and 8..15, positions 8..15 likewise
      load_matrices(key, keys + Halves::unit(lane / 16 * 8 + lane % 8, 2 * s + lane / 8 % 2));
      uint32_t query_rest[4];
      rests.load(query_rest, query, s);
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        mma_16x8x16(score[n], query.first[s], key[2 * n], key[2 * n + 1]);
        mma_16x8x16(rest[n], query_rest, key[2 * n], key[2 * n + 1]);
      }
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) score[n][k] += rest[n][k];
    }
    rows.soften(score, pieces.first + i * kPageRows);
    uint32_t weight[1][4];
    rows.pack(weight, score);
    if (__any_sync(kWholeWarp, rows.keep[0] != 1 || rows.keep[1] != 1)) rows.rescale();
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t value[4];  // positions 0..7 and 8..15 of columns 0..7, then of columns 8..15
      load_matrices_transposed(value, values + Halves::unit(lane % 16, 2 * n + lane / 16));
      mma_16x8x16(rows.sum[2 * n], weight[0], value[0], value[1]);
      mma_16x8x16(rows.sum[2 * n + 1], weight[0], value[2], value[3]);
    }
    __syncwarp();
  }
  wait_copies<0>();
}

/// A sum of weighed values and what it has to be weighed with: the largest score, the sum of the weights.
struct Weighed {
  float4 sum{0, 0, 0, 0};
  float largest = -INFINITY, total = 0;

  /// Of several that had a largest score, `of`; none: it is -infinity.
  __device__ __forceinline__ void add(float4 v, float2 weight) {
    if (weight.x == -INFINITY) return;
    const float factor = exp2f(weight.x - largest);
    total += factor * weight.y;
    sum.x += factor * v.x, sum.y += factor * v.y, sum.z += factor * v.z, sum.w += factor * v.w;
  }
  __device__ __forceinline__ float4 value() const {
    const float inverse = __fdividef(1.0f, total);
    return {sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse};
  }
};

/// Leaves four columns of a head's result, gated, in codes, too, where the launch behind takes them. Eight
/// lanes have a block of 32; a warp comes together.
__device__ __forceinline__ void leave(const AttendArgs& p, int row, int head, int column, float4 value) {
  value = p.gated(row, head, column, value);
  *reinterpret_cast<float4*>(p.out(row, head) + column) = value;
  if (p.codes == nullptr) return;
  const int at = head * p.out.columns + column, quad = at / int8_mma::kQuad;
  int8_mma::store_codes(value, p.codes + int64_t{row} * p.coded.pitch, p.coded, quad,
                        at % int8_mma::kQuad / 32, at % 32 / 4);
}

/// Calls put(head, column) for every four columns of a group's heads. Lanes that the last warp has too many
/// do what others do, so that warps stay together.
template <int kColumns, typename Put>
__device__ __forceinline__ void each_four(const AttendArgs& p, int group, Put put) {
  constexpr int kFours = kColumns / 4;
  const int count = p.heads_a_group * kFours;
  for (int n = threadIdx.x; n / 32 * 32 < count; n += kThreads) {
    const int i = n < count ? n : n % count;
    put(group * p.heads_a_group + i / kFours, i % kFours * 4);
  }
}

/// The last of a group's chunks to come puts all of them together.
template <int kColumns>
__device__ __forceinline__ void join_arrived(const AttendArgs& p, const Work& work) {
  __shared__ bool is_last;
  const int chunks = p.chunks_of(work.length);
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    unsigned long long* const arrived = p.arrived + work.row * p.groups + work.group;
    is_last = atomicAdd(arrived, 1ull) + 1 == chunks;
    if (is_last) *arrived = 0;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  each_four<kColumns>(p, work.group, [&](int head, int column) {
    float4 sum[kJoinedChunks];
    float2 weight[kJoinedChunks];
    Weighed all;
#pragma unroll
    for (int k = 0; k < kJoinedChunks; ++k) {
      const int64_t part = (int64_t{work.row} * p.chunks + min(k, chunks - 1)) * p.q.heads + head;
      sum[k] = __ldcg(reinterpret_cast<const float4*>(p.parts + part * kColumns + column));
      weight[k] = k < chunks ? __ldcg(p.weights + part) : float2{-INFINITY, 0};
      all.largest = fmaxf(all.largest, weight[k].x);
    }
#pragma unroll
    for (int k = 0; k < kJoinedChunks; ++k) all.add(sum[k], weight[k]);
    leave(p, work.row, head, column, all.value());
  });
}

/// Puts the four warps' sums together, with the group's sinks in its first chunk: the result, or the chunk's
/// part and what it has to be weighed with.
template <int kColumns>
__device__ __forceinline__ void reduce(const AttendArgs& p, const Work& work, const float* sinks,
                                       Sums<kColumns>& sums, const TwoRows<kPiece, kColumns>& rows) {
  __shared__ float2 of_warp[kWarps][kGroupQueries];  // the largest score and the sum below it
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  __syncthreads();  // everybody has done with keys and values
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int query = g + 8 * h;
    const float all = lane_sum(rows.all[h], 4);
    if (query >= p.heads_a_group) continue;
    if (t == 0) of_warp[warp][query] = {rows.largest[h] * rows.factor[h], all};
    float* const to = sums.of_warp[warp][query] + 2 * t;
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) = {rows.sum[n][2 * h], rows.sum[n][2 * h + 1]};
  }
  __syncthreads();
  const int64_t part = (int64_t{work.row} * p.chunks + work.chunk) * p.q.heads;
  each_four<kColumns>(p, work.group, [&](int head, int column) {
    const int query = head - work.group * p.heads_a_group;
    Weighed all{.largest = sinks[query]};
#pragma unroll
    for (const auto& one : of_warp) all.largest = fmaxf(all.largest, one[query].x);
    all.total = exp2f(sinks[query] - all.largest);
#pragma unroll
    for (int w = 0; w < kWarps; ++w)
      all.add(*reinterpret_cast<const float4*>(sums.of_warp[w][query] + column), of_warp[w][query]);
    if (work.alone) {
      leave(p, work.row, head, column, all.value());
    } else {
      *reinterpret_cast<float4*>(p.parts + (part + head) * kColumns + column) = all.sum;
      if (column == 0) p.weights[part + head] = {all.largest, all.total};
    }
  });
  if (!work.alone && p.arrived != nullptr) join_arrived<kColumns>(p, work);
  __syncthreads();
}

/// Which of a step's rows attend by themselves, a bit each.
struct Marks {
  uint32_t of[kMostMarks];
  int last;  ///< the largest of their positions

  /// Threads of the block together. Returns how many rows do.
  __device__ __forceinline__ int find(const StepView& step, int rows) {
    int count = 0, largest = 0;
    if (threadIdx.x == 0) last = 0;
    for (int from = 0; from < rows; from += kThreads) {
      const int row = from + static_cast<int>(threadIdx.x);
      // Most are in the middle of a prompt.
      const bool among = __all_sync(kWholeWarp, row < rows && goes_on(step, row));
      const bool apart = !among && row < rows && attends_alone(step, row, rows);
      const unsigned mark = __ballot_sync(kWholeWarp, apart);
      if (threadIdx.x % 32 == 0 && row < rows) of[row / 32] = mark;
      if (apart) largest = max(largest, step.positions[row]);
      count += __syncthreads_count(apart);
    }
    atomicMax(&last, largest);
    __syncthreads();
    return count;
  }
  /// The n-th of them; there is one.
  __device__ __forceinline__ int row(int n) const {
    int word = 0;
    for (int count = __popc(of[0]); n >= count; count = __popc(of[word])) n -= count, ++word;
    return 32 * word + static_cast<int>(__fns(of[word], 0, n + 1));
  }
};

template <int kColumns, bool kCoded, template <int, bool> typename Source>
__global__ void __launch_bounds__(kThreads, 2)
    attend_chunks(const Timestamps timestamps, const __grid_constant__ AttendArgs p,
                  const __grid_constant__ typename Source<kColumns, kCoded>::Args products) {
  using Heads = Source<kColumns, kCoded>;
  extern __shared__ __align__(128) char attend_shared[];
  __shared__ Marks marks;
  __shared__ float sinks[kGroupQueries];
  __shared__ QueryRests<kColumns> rests;
  const PdlLink pdl(timestamps);
  const int rows = p.step.header->rows;
  constexpr bool kMakes = Heads::kMakes;
  const int alone = kMakes || p.few ? rows : marks.find(p.step, rows), each = alone * p.groups;
  // Rows of a few pages have no more chunks; each chunk's rows come together, so that blocks have equal
  // shares.
  const int chunks = kMakes || p.few ? p.chunks : min(p.chunks, marks.last / kPageRows + 1);
  const int warp = threadIdx.x / 32;
  auto& sums = *reinterpret_cast<Sums<kColumns>*>(attend_shared);
  bool waited = false;
  for (int item = static_cast<int>(blockIdx.x); item < each * chunks; item += static_cast<int>(gridDim.x)) {
    const int chunk = item / each, in_chunk = item - chunk * each, number = in_chunk / p.groups;
    const Work work =
        work_of(p, kMakes || p.few ? number : marks.row(number), in_chunk - number * p.groups, chunk);
    if (work.begin >= work.end) continue;
    if (const int i = static_cast<int>(threadIdx.x); i < p.heads_a_group)
      sinks[i] = p.sinks != nullptr && work.chunk == 0 ? p.sink(work.group * p.heads_a_group + i) : -INFINITY;
    Pieces<kColumns, kCoded> pieces(p, work, attend_shared + warp * Shape<kColumns, kCoded>::kWarpBytes,
                                    warp);
    constexpr int kAhead = Shape<kColumns, kCoded>::kStages - 1;
    int begun = 0;
    while (!waited && begun < kAhead && (Heads::kMakes || pieces.next_settled())) pieces.bring(), ++begun;
    const Heads heads(p, products, work);
    if (!waited) pdl.wait();
    waited = true;
    while (begun < kAhead) pieces.bring(), ++begun;

    QueryOperands<kColumns, true> query;
    heads.load(query);
    rests.keep(query);
    TwoRows<kPiece, kColumns> two{
        .limit = {work.length, work.length},
        .least = work.length,
        .window = p.window,
        .lowest = p.window > 0 ? work.length - p.window : 0,
        .factor = {query.unscale[0] * p.scale_log2, query.unscale[1] * p.scale_log2},
        .sum = {}};
    attend(pieces, heads, query, rests, two);
    reduce(p, work, sinks, sums, two);
  }
  if (!waited) pdl.wait();
}

constexpr int kJoinWarps = 8;

/// grid: (heads, rows, columns / 128). Each warp adds up every eighth chunk, four columns a lane.
template <int kColumns>
__global__ void __launch_bounds__(32 * kJoinWarps)
    join_chunks(const Timestamps timestamps, const __grid_constant__ AttendArgs p) {
  constexpr int kHere = std::min(kColumns, 128);
  const int first_column = static_cast<int>(blockIdx.z) * kHere;
  __shared__ float4 sums[kJoinWarps][32];
  __shared__ __align__(16) float values[kHere];
  const PdlLink pdl(timestamps);
  const int head = static_cast<int>(blockIdx.x), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows = min(p.step.header->rows, p.split);
  bool waited = false;
  for (int row = static_cast<int>(blockIdx.y); row < rows; row += static_cast<int>(gridDim.y)) {
    if (!p.few && !attends_alone(p.step, row, p.step.header->rows)) continue;
    const int chunks = p.chunks_of(p.cut_length(row));
    if (chunks == 1 && !p.together) continue;
    if (!waited) pdl.wait();
    waited = true;
    const int64_t part = int64_t{row} * p.chunks * p.q.heads + head;
    const auto weight_of = [&](int i) {
      return i < chunks ? __ldcg(p.weights + part + int64_t{i} * p.q.heads) : float2{-INFINITY, 0};
    };
    const float2 low = weight_of(lane), high = weight_of(lane + 32);
    constexpr int kEach = kAttendChunks / kJoinWarps;
    float4 v[kEach];
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int i = k * kJoinWarps + warp;
      const auto* const at = reinterpret_cast<const float4*>(
          p.parts + (part + int64_t{i} * p.q.heads) * kColumns + first_column);
      v[k] = i < chunks && lane < kHere / 4 ? __ldcg(at + lane) : float4{0, 0, 0, 0};
    }
    const float largest = lane_max(fmaxf(low.x, high.x));
    const float low_factor = exp2f(low.x - largest), high_factor = exp2f(high.x - largest);
    const float inverse = 1.0f / lane_sum(low_factor * low.y + high_factor * high.y);
    float4 sum{0, 0, 0, 0};
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int i = k * kJoinWarps + warp;
      const float factor = __shfl_sync(kWholeWarp, i < 32 ? low_factor : high_factor, i % 32);
      sum.x += factor * v[k].x, sum.y += factor * v[k].y, sum.z += factor * v[k].z, sum.w += factor * v[k].w;
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (threadIdx.x < kHere) {
      float value = 0;
#pragma unroll
      for (int w = 0; w < kJoinWarps; ++w) value += reinterpret_cast<const float*>(sums[w])[threadIdx.x];
      values[threadIdx.x] = value * inverse;
    }
    __syncthreads();
    if (warp == 0) {
      const int four = lane % (kHere / 4);
      leave(p, row, head, first_column + 4 * four, reinterpret_cast<const float4*>(values)[four]);
    }
  }
  if (!waited) pdl.wait();
}
static_assert(kAttendChunks == 64, "a lane weighs two chunks");

template <int kColumns>
void join(const AttendArgs& args, const Context& context) {
  const int64_t rows = args.few ? context.step_rows : 8;
  launch(context, join_chunks<kColumns>,
         {dim3(static_cast<unsigned>(args.q.heads), static_cast<unsigned>(rows), (kColumns + 127) / 128),
          dim3(32 * kJoinWarps)},
         args);
}

template <int kColumns, bool kCoded, template <int, bool> typename Source>
void launch_chunks(const AttendArgs& args, const auto& products, const Context& context) {
  static_assert(Shape<kColumns, kCoded>::kSharedBytes <= (kColumns > 128 ? most_shared(90) : kMostShared));
  const int64_t items = context.step_rows * args.groups * args.chunks;
  LaunchShape shape{dim3(static_cast<unsigned>(std::min<int64_t>(items, 2 * context.sm_count))),
                    dim3(kThreads), Shape<kColumns, kCoded>::kSharedBytes};
  // Qwen3-30B-A3B behind 2,048 positions: 634 -> 653 tokens/s, 2 sequences 881 -> 919, 8 1,794 -> 1,766
  // (H200).
  shape.late = context.step_rows <= 2;
  launch(context, attend_chunks<kColumns, kCoded, Source>, shape, args, products);
  if (args.chunks > 1 && args.arrived == nullptr) join<kColumns>(args, context);
}

template <int kColumns, template <int, bool> typename Source>
void launch_cached(const AttendArgs& args, const auto& products, const Context& context) {
  if constexpr (kColumns == 64 || kColumns == 128)
    if (args.cache.coded > 0) return launch_chunks<kColumns, true, Source>(args, products, context);
  launch_chunks<kColumns, false, Source>(args, products, context);
}

}  // namespace

void gqa_split_kv(const AttendArgs& args, const Context& context) {
  constexpr NoProducts kNone;
  switch (args.q.columns) {
    case 64: return launch_cached<64, ReadyHeads>(args, kNone, context);
    case 80: return launch_cached<80, ReadyHeads>(args, kNone, context);
    case 96: return launch_cached<96, ReadyHeads>(args, kNone, context);
    case 256: return launch_cached<256, ReadyHeads>(args, kNone, context);
    default: return launch_cached<128, ReadyHeads>(args, kNone, context);
  }
}

void join_split_kv(const AttendArgs& args, const Context& context) {
  switch (args.q.columns) {
    case 64: return join<64>(args, context);
    case 80: return join<80>(args, context);
    case 96: return join<96>(args, context);
    case 256: return join<256>(args, context);
    default: return join<128>(args, context);
  }
}

void gqa_split_kv(const AttendArgs& args, const GqaQueryArgs& heads, const Context& context) {
  if (args.q.columns == 64) return launch_cached<64, MadeHeads>(args, heads, context);
  launch_cached<128, MadeHeads>(args, heads, context);
}

}  // namespace sluice::backend::cuda
