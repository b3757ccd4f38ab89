// Expands the contexts of long prompts: keys [nope] and values of every head, of the latents in the cache
// (DeepSeek-V2, 2024, section 2.1, before its matrices are absorbed). First weights
// and latents as operands of matrix instructions; then the products, by wgmma (sm_90a).
//
// A product's thread block takes 128 positions of a head's keys or values: two warpgroups of 64 positions x
// up to 256 columns, both operands through a ring of bulk copies. Bound by the tensor cores, and close to it
// by L2: 48 KB feed 1,024 cycles.
#include <cuda_fp16.h>

#include <algorithm>

#include "backend/cuda/attention/mla_expanded.h"
#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/codes.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "backend/cuda/prim/wgmma.cuh"

namespace sluice::backend::cuda {
namespace {

// --- weights and latents ---

constexpr int kPrepareThreads = 256;
constexpr int kUnitPairs = (kExpandRank + kExpandRotated) / 16;  ///< of a cache row: a thread each

/// 32 numbers of a flat row as halves.
__device__ __forceinline__ void halves_of(const Matrix& m, int64_t flat_row, int block, uint32_t (&out)[16]) {
  if (is_float(m.type)) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int64_t at = flat_row * m.columns + 32 * block + 2 * i;
      out[i] = pack_halves(float_number(m.type, m.codes, at), float_number(m.type, m.codes, at + 1));
    }
    return;
  }
  with_blocked_type(m.type, [&]<Type T>() {
    const Raw<T> raw = load_block<T>(planes_from(m), flat_row * (m.columns / 32) + block);
    const Codes codes = unpack_codes<T>(raw);
    const Scales scales = unpack_scales<T>(raw);
#pragma unroll
    for (int i = 0; i < 16; ++i)
      out[i] = pack_halves(number<T>(codes, scales, 2 * i), number<T>(codes, scales, 2 * i + 1));
  });
}

/// Item i: 32 numbers of a row of k_b, which is stored rotated, or of v_b.
__device__ __forceinline__ void unpack_weights(const Expanded& e, const Matrix& k_b, const Matrix& v_b,
                                               int i) {
  const int of_k = e.heads * (e.nope / 32) * kExpandRank, of_v = e.heads * e.value * (kExpandRank / 32);
  uint32_t numbers[16];
  if (i < of_k) {
    const int c = i % kExpandRank, block = i / kExpandRank % (e.nope / 32),
              head = i / kExpandRank / (e.nope / 32);
    halves_of(k_b, k_b.row(head, c), block, numbers);
    char* const to = e.weights + head * e.weights_of_head() + c / 64 * e.nope * kExpandBlock + c % 8 * 2;
#pragma unroll
    for (int k = 0; k < 32; ++k) {
      const int n = block * 32 + k;
      *reinterpret_cast<uint16_t*>(to + swizzled_unit(n, c % 64 / 8)) =
          static_cast<uint16_t>(numbers[k / 2] >> (k % 2 * 16));
    }
  } else if (i < of_k + of_v) {
    const int j = i - of_k, block = j % (kExpandRank / 32), n = j / (kExpandRank / 32) % e.value,
              head = j / (kExpandRank / 32) / e.value;
    halves_of(v_b, v_b.row(head, n), block, numbers);
    char* const to = e.weights + head * e.weights_of_head() + int64_t{e.nope} * kExpandRank * 2 +
                     block / 2 * e.value * kExpandBlock;
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      *reinterpret_cast<uint4*>(to + swizzled_unit(n, block % 2 * 4 + u)) = {
          numbers[4 * u], numbers[4 * u + 1], numbers[4 * u + 2], numbers[4 * u + 3]};
    }
  }
}

/// Item i: 16 columns of a position; what no row sees is zero.
__device__ __forceinline__ void gather_latents(const Expanded& e, int64_t i) {
  const int position = static_cast<int>(i / kUnitPairs), pair = static_cast<int>(i % kUnitPairs);
  if (position >= e.step.prompts->positions) return;
  int s = 0;
  while (s + 1 < e.step.prompts->segments && position >= e.step.segments[s + 1].offset) ++s;
  const Segment segment = e.step.segments[s];
  const int own = position - segment.offset;
  SixteenHalves numbers{};
  if (own < segment.length) {
    const char* const row = e.cache.row(e.layer, e.step.slot_of(segment.first_row, own));
    const bool coded = 16 * pair < e.cache.coded;
    if (coded) {
      const uint4 codes = __ldcg(reinterpret_cast<const uint4*>(row) + pair);
      const auto* const scales = reinterpret_cast<const unsigned short*>(row + e.cache.scales_at);
      numbers = halves_of_codes(codes, __ushort_as_half(__ldcg(scales + pair / 2)));
    } else {
      const auto* const from =
          reinterpret_cast<const uint4*>(row + e.cache.exact_at) + 2 * (pair - e.cache.coded / 16);
      numbers = {__ldcg(from), __ldcg(from + 1)};
    }
  }
  constexpr int kLatentPairs = kExpandRank / 16;
  const int in_tile = position % kExpandTile;
  char* to;
  int row, unit;
  if (pair < kLatentPairs) {
    to = e.latents + (int64_t{position / kExpandTile} * 8 + pair / 4) * kExpandTile * kExpandBlock;
    row = in_tile, unit = pair % 4 * 2;
  } else {
    to = e.rotated + int64_t{position - in_tile} * kExpandBlock;
    row = in_tile, unit = (pair - kLatentPairs) * 2;
  }
  *reinterpret_cast<uint4*>(to + swizzled_unit(row, unit)) = numbers.low;
  *reinterpret_cast<uint4*>(to + swizzled_unit(row, unit + 1)) = numbers.high;
}

/// The first weight_blocks blocks unpack weights.
__global__ void __launch_bounds__(kPrepareThreads)
    prepare_operands(const Timestamps timestamps, const Expanded e, const Matrix k_b, const Matrix v_b,
                     int weight_blocks) {
  const PdlLink pdl(timestamps);
  pdl.wait();
  if (e.step.prompts->segments == 0) return;
  const int block = static_cast<int>(blockIdx.x);
  if (block < weight_blocks) {
    unpack_weights(e, k_b, v_b, block * kPrepareThreads + static_cast<int>(threadIdx.x));
  } else {
    gather_latents(e, int64_t{block - weight_blocks} * kPrepareThreads + threadIdx.x);
  }
}

// --- products ---

constexpr int kThreads = 384, kStages = 4, kChunks = kExpandRank / 64;
constexpr int kLatentBytes = kExpandTile * kExpandBlock;  ///< of a stage

constexpr int stage_bytes(int columns) { return kLatentBytes + columns * kExpandBlock; }
constexpr int shared_bytes(int columns) { return kStages * stage_bytes(columns) + 128 + 1024; }

#ifdef SLUICE_WGMMA

/// Sums of 64 positions x kColumns.
template <int kColumns>
struct Sums {
  static constexpr int kWhole = kColumns / 128;
  static constexpr bool kNarrow = kColumns % 128 != 0;
  float whole[kWhole][16][4];
  float narrow[kNarrow ? 8 : 1][4];

  __device__ __forceinline__ void start(uint64_t latents, uint64_t weights, bool more) {
#pragma unroll
    for (int i = 0; i < kWhole; ++i)
      wgmma_64x16_shared(whole[i], latents, weights + (i * 128 * kExpandBlock >> 4), more);
    if constexpr (kNarrow) {
      wgmma_64x16_shared(narrow, latents, weights + (kWhole * 128 * kExpandBlock >> 4), more);
    }
  }
  __device__ __forceinline__ void hold() {
#pragma unroll
    for (int i = 0; i < kWhole; ++i) hold_sums(whole[i]);
    if constexpr (kNarrow) hold_sums(narrow);
  }
  /// Two neighbouring columns of eight: those of row g (half 0) or g + 8.
  __device__ __forceinline__ uint32_t pair(int eight, int half) const {
    const float(&s)[4] = eight < kWhole * 16 ? whole[eight / 16 % (kWhole > 0 ? kWhole : 1)][eight % 16]
                                             : narrow[eight % (kNarrow ? 8 : 1)];
    return pack_halves(s[2 * half], s[2 * half + 1]);
  }
};

/// A warpgroup's 64 positions of one head; to: the head's, weights by way of the ring.
template <int kColumns, int kKeys>
__device__ __forceinline__ void expand(char* to, uint32_t stages, uint32_t full, uint32_t empty) {
  constexpr int kStageBytes = stage_bytes(kColumns);
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128, g = thread % 32 / 4, t = thread % 4;
  Sums<kColumns> sums;
  for (int c = 0; c < kChunks; ++c) {
    const int stage = c % kStages;
    const uint32_t at = stages + stage * kStageBytes;
    const uint64_t latents = matrix_descriptor(at + group * 64 * kExpandBlock, 1024);
    const uint64_t weights = matrix_descriptor(at + kLatentBytes, 1024);
    barrier_wait(full + 8 * stage, c / kStages & 1);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < 4; ++s) sums.start(latents + (s * 32 >> 4), weights + (s * 32 >> 4), c > 0 || s > 0);
    wgmma_commit();
    wgmma_wait<1>();  // the chunk before this one is done with
    if (c > 0 && thread == 0) barrier_arrive(empty + 8 * ((c - 1) % kStages));
  }
  wgmma_wait<0>();
  sums.hold();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position =
        static_cast<int>(blockIdx.y) * kExpandTile + group * 64 + thread / 32 * 16 + g + 8 * half;
    char* const tile = to + int64_t{position / kKeys} * (kColumns / 64) * kKeys * kExpandBlock;
#pragma unroll
    for (int b = 0; b < kColumns / 32; ++b) {
      const uint4 unit{sums.pair(4 * b, half), sums.pair(4 * b + 1, half), sums.pair(4 * b + 2, half),
                       sums.pair(4 * b + 3, half)};
      *reinterpret_cast<uint4*>(tile + b / 2 * kKeys * kExpandBlock +
                                swizzled_unit(position % kKeys, b % 2 * 4 + t)) = unit;
    }
  }
}

#endif

/// grid: (keys and values of the group's heads, tiles of positions)
template <int kNope, int kValue>
__global__ void __launch_bounds__(kThreads, 1)
    expand_kernel(const Timestamps timestamps, const __grid_constant__ Expanded e) {
#ifdef SLUICE_WGMMA
  constexpr int kMost = kNope > kValue ? kNope : kValue, kKeys = expanded_keys(kValue);
  extern __shared__ char expand_shared[];
  const uint32_t stages = (shared_address(expand_shared) + 1023) / 1024 * 1024,
                 full = stages + kStages * stage_bytes(kMost), empty = full + 8 * kStages;
  const PdlLink pdl(timestamps);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, 2);
    barrier_init_fence();
  }
  __syncthreads();
  pdl.wait();
  const int tile = static_cast<int>(blockIdx.y), slot = static_cast<int>(blockIdx.x) / 2;
  const bool of_values = blockIdx.x % 2 == 1;
  if (tile * kExpandTile >= e.step.prompts->positions) return;
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x != 256) return;
    const int columns = of_values ? kValue : kNope, bytes = stage_bytes(columns);
    const char* latents = e.latents + int64_t{tile} * kChunks * kLatentBytes;
    const char* weights =
        e.weights + (e.first_head + slot) * e.weights_of_head() + (of_values ? kNope * kExpandRank * 2 : 0);
    for (int c = 0; c < kChunks; ++c) {
      const int stage = c % kStages;
      const uint32_t at = stages + stage * bytes;
      barrier_wait(empty + 8 * stage, (c / kStages & 1) ^ 1);
      barrier_expect(full + 8 * stage, bytes);
      copy_bulk(at, latents + c * kLatentBytes, kLatentBytes, full + 8 * stage);
      copy_bulk(at + kLatentBytes, weights + c * columns * kExpandBlock, columns * kExpandBlock,
                full + 8 * stage);
    }
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  if (of_values) {
    expand<kValue, kKeys>(e.values + slot * e.capacity * kValue * 2, stages, full, empty);
  } else {
    expand<kNope, kKeys>(e.keys + slot * e.capacity * kNope * 2, stages, full, empty);
  }
#endif
}

template <int kNope, int kValue>
void launch_expand(const Expanded& e, const Context& context) {
  launch(context, expand_kernel<kNope, kValue>,
         {dim3(static_cast<unsigned>(2 * e.slots), static_cast<unsigned>(e.capacity / kExpandTile)),
          dim3(kThreads), shared_bytes(std::max(kNope, kValue))},
         e);
}

}  // namespace

void prepare_expansion(const Expanded& e, const Matrix& k_b, const Matrix& v_b, const Context& context) {
  const int64_t of_k = int64_t{e.heads} * (e.nope / 32) * kExpandRank,
                of_v = int64_t{e.heads} * e.value * (kExpandRank / 32);
  const auto weight_blocks = (of_k + of_v + kPrepareThreads - 1) / kPrepareThreads;
  const auto latent_blocks = (e.capacity * kUnitPairs + kPrepareThreads - 1) / kPrepareThreads;
  launch(context, prepare_operands,
         {dim3(static_cast<unsigned>(weight_blocks + latent_blocks)), dim3(kPrepareThreads)}, e, k_b, v_b,
         static_cast<int>(weight_blocks));
}

void expand_heads(const Expanded& e, const Context& context) {
  return e.value == 256 ? launch_expand<192, 256>(e, context) : launch_expand<128, 128>(e, context);
}

}  // namespace sluice::backend::cuda
