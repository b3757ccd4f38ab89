// Attention of long prompts over expanded keys and values (attention/mla_expand.cu), by wgmma (sm_90a): a
// thread block takes a head of 128 rows of a sequence over their whole context, with a running softmax
// (online softmax: Milakov and Gimelshein 2018; warpgroups that give and take, and a tile's scores under the
// values of the tile before it, as in FlashAttention-3).
//
// Two warpgroups take 64 rows each: scores of 64 x kKeys, values of 64 x kValue (128 registers a thread where
// that is 256). A third one's thread brings keys and values by bulk copies, two tiles of each. While one
// group is at its softmax the other one multiplies. A row's bits depend on its own context alone: tiles are
// the same steps for everybody, and what a row does not see has weight 0.
//
// Bound by the tensor cores: 2 x 64 x kKeys x (kNope + 64 + kValue) products a tile, 2,048 cycles of them for
// 64 positions of 256 + 256 columns.
#include <cuda_fp16.h>

#include "backend/cuda/attention/mla_expanded.h"
#include "backend/cuda/attention/mla_expanded_rows.cuh"
#include "backend/cuda/attention/wgmma_attention.cuh"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/sync.cuh"

namespace sluice::backend::cuda {
namespace {

constexpr int kThreads = 384;

template <int kNopeColumns, int kValueColumns>
struct Shape {
  static constexpr int kNope = kNopeColumns, kValue = kValueColumns, kWidth = kNope + kExpandRotated;
  static constexpr int kKeys = expanded_keys(kValue);
  static constexpr int kNopeBytes = kKeys * kNope * 2, kRotatedBytes = kKeys * kExpandRotated * 2;
  static constexpr int kKeyBytes = kNopeBytes + kRotatedBytes, kValueBytes = kKeys * kValue * 2;
  static constexpr int kQueryBytes = kHalfTile * kWidth * 2;  ///< of a warpgroup
  static constexpr int kSharedBytes =
      2 * kQueryBytes + 2 * (kKeyBytes + kValueBytes) + kExpandTile * 4 + 64 + 1024;
};

#ifdef SLUICE_WGMMA

/// One thread: tile after tile of keys and values.
template <typename S>
__device__ __forceinline__ void bring_tiles(const Expanded& e, const RowTile& tile, int slot,
                                            const Ring& ring) {
  const int64_t first = slot * e.capacity + tile.segment.offset;
  const char* keys = e.keys + first * S::kNope * 2;
  const char* rotated = e.rotated + int64_t{tile.segment.offset} * kExpandBlock;
  const char* values = e.values + first * S::kValue * 2;
  for (int from = 0, i = 0; from < tile.longest; from += S::kKeys, ++i) {
    const int stage = i % 2, phase = (i / 2 & 1) ^ 1;
    const uint32_t to = ring.keys + stage * S::kKeyBytes;
    barrier_wait(ring.key_empty + 8 * stage, phase);
    barrier_expect(ring.key_full + 8 * stage, S::kKeyBytes);
    copy_bulk(to, keys, S::kNopeBytes, ring.key_full + 8 * stage);
    copy_bulk(to + S::kNopeBytes, rotated, S::kRotatedBytes, ring.key_full + 8 * stage);
    barrier_wait(ring.value_empty + 8 * stage, phase);
    barrier_expect(ring.value_full + 8 * stage, S::kValueBytes);
    copy_bulk(ring.values + stage * S::kValueBytes, values, S::kValueBytes, ring.value_full + 8 * stage);
    keys += S::kNopeBytes, rotated += S::kRotatedBytes, values += S::kValueBytes;
  }
}

#endif

template <typename S>
__global__ void __launch_bounds__(kThreads, 1)
    attend_expanded_kernel(const Timestamps timestamps, const __grid_constant__ AttendExpanded p,
                           const __grid_constant__ RopeTable rope) {
#ifdef SLUICE_WGMMA
  extern __shared__ char attend_shared[];
  char* const shared = attend_shared + (1024 - shared_address(attend_shared) % 1024) % 1024;
  constexpr int kKeysAt = 2 * S::kQueryBytes, kValuesAt = kKeysAt + 2 * S::kKeyBytes,
                kFactorsAt = kValuesAt + 2 * S::kValueBytes, kBarriersAt = kFactorsAt + kExpandTile * 4;
  float* const factors = reinterpret_cast<float*>(shared + kFactorsAt);
  const uint32_t base = shared_address(shared), barriers = base + kBarriersAt;
  const Ring ring{base + kKeysAt, base + kValuesAt, barriers, barriers + 16, barriers + 32, barriers + 48};
  const PdlLink pdl(timestamps);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      barrier_init(ring.key_full + 8 * i, 1), barrier_init(ring.value_full + 8 * i, 1);
      barrier_init(ring.key_empty + 8 * i, 2), barrier_init(ring.value_empty + 8 * i, 2);
    }
    barrier_init_fence();
  }
  __syncthreads();
  pdl.wait();
  // Later rows see more: they begin first.
  const int item = static_cast<int>(gridDim.x - 1 - blockIdx.x), tiles_before = item / p.e.slots;
  const int slot = item % p.e.slots, head = p.e.first_head + slot;
  if (tiles_before >= p.e.step.prompts->tiles) return;
  const RowTile tile(p.e, tiles_before);
  if (threadIdx.x >= 256) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 256) bring_tiles<S>(p.e, tile, slot, ring);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
  bring_queries<S>(p, rope, tile, head, shared, factors);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("bar.sync 1, 256;" ::: "memory");

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  const int group = threadIdx.x / 128 * kHalfTile, mine = group + warp * 16 + lane / 4;
  TileAttention<S> attend{.ring = ring,
                          .queries = matrix_descriptor(base + threadIdx.x / 128 * S::kQueryBytes, 1024),
                          .tiles = (tile.limit(group + kHalfTile - 1) + S::kKeys - 1) / S::kKeys,
                          .rows = {.limit = {tile.limit(mine), tile.limit(mine + 8)},
                                   .least = tile.limit(group),
                                   .factor = {factors[mine], factors[mine + 8]}}};
  attend.run();
  attend.rows.store(p, tile, mine, head);
#endif
}

template <typename S>
void launch_shape(const AttendExpanded& args, const RopeTable& rope, const Context& context) {
  // A segment's last tile may have one row.
  const int64_t tiles = context.step_rows / kExpandTile + most_segments(context.step_rows);
  launch(context, attend_expanded_kernel<S>,
         {dim3(static_cast<unsigned>(tiles * args.e.slots)), dim3(kThreads), S::kSharedBytes}, args, rope);
}

}  // namespace

void attend_expanded(const AttendExpanded& args, const RopeTable& rope, const Context& context) {
  return args.e.value == 256 ? launch_shape<Shape<192, 256>>(args, rope, context)
                             : launch_shape<Shape<128, 128>>(args, rope, context);
}

}  // namespace sluice::backend::cuda
