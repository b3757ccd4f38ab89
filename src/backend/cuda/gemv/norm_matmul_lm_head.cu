// norm_matmul of 2 to 32 rows with one matrix of very many outputs (the output matrix), Q6_K, in one launch.
//
// 1,680 bytes a row of 2,048 columns: 260 MB of 154,880 outputs, 58 us at 4.5 TB/s. Every thread block norms
// all rows for itself and keeps them as halves in shared memory (32 KB of 8 rows: read from L2 for every 16
// outputs, as kernels of small matrices do, they would be more bytes than the weights), while its first
// weights are on their way. Then each of its 16 warps takes 16 outputs at a time, by itself: codes come by
// TMA copies to a ring of its own, scales to its registers, 256 columns ahead. The norm's factor multiplies
// the sums.
//
// An element's sum depends on nothing but its weights and its row, and is the same in every bucket.
#include "backend/cuda/gemm/gemm_dense.h"
#include "backend/cuda/gemv/f16_rows.cuh"
#include "backend/cuda/gemv/q6_k_mma.cuh"
#include "backend/cuda/host/kernels.h"
#include "backend/cuda/host/memory.h"
#include "backend/cuda/host/tensor_map.h"
#include "backend/cuda/prim/launch.cuh"
#include "backend/cuda/prim/pack.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/tma.cuh"
#include "backend/cuda/prim/warp.cuh"
#include "program/op.h"

namespace sluice::backend::cuda {
namespace {

using namespace program;
using q6_k_mma::kRows;
using small_batch::kThreads, small_batch::kWarps, small_batch::kMostRows;

constexpr int kColumns = 2048, kSupers = kColumns / q6_k_mma::kColumns;
/// Bytes of a row's scales, and of their scales.
constexpr int kScaleBytes = kColumns / 16, kSuperBytes = kSupers * 2;

/// A warp's ring: what tokens leave room for.
struct Ring {
  int supers;  ///< of a slot: times 256 columns
  int slots;

  constexpr int low_bytes() const { return supers * q6_k_mma::kLowBytes; }
  constexpr int slot_bytes() const { return supers * (q6_k_mma::kLowBytes + q6_k_mma::kHighBytes); }
};
constexpr Ring ring_for(int n_tiles) {
  return n_tiles == 1 ? Ring{2, 2} : n_tiles == 2 ? Ring{1, 3} : Ring{1, 2};
}
constexpr int n_tile_bytes() { return kSupers * q6_k_mma::kTokenBytes; }
constexpr int64_t shared_bytes(int n_tiles) {
  const Ring ring = ring_for(n_tiles);
  return 1024 + int64_t{kWarps} * ring.slots * ring.slot_bytes() + int64_t{n_tiles} * n_tile_bytes();
}
static_assert(shared_bytes(1) <= 226 * 1024 && shared_bytes(2) <= 226 * 1024 &&
              shared_bytes(4) <= 226 * 1024);

struct Args {
  CUtensorMap low, high;  ///< slots of the weight's planes
  Matrix weight;
  Rows<float> in, out;
  const int32_t* rows;
  const float* norm;
  float epsilon;
};

/// Half a row's numbers in a warp's registers, 32 columns of each 64 at a time; the other half is its
/// neighbour's.
class HalfRow {
 public:
  static constexpr int kEach = kColumns / 2 / (4 * 32);

  __device__ __forceinline__ HalfRow(const float* row, const float* norm) {
    row += first_column(), norm += first_column();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      x_[i] = __ldcg(reinterpret_cast<const float4*>(row + column(i)));
      norm_[i] = __ldg(reinterpret_cast<const float4*>(norm + column(i)));
    }
  }
  /// Times the norm's weights; the sum of squares before, and the largest number.
  __device__ __forceinline__ float2 multiply() {
    float squares = 0, largest = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      float4& x = x_[i];
      const float4& by = norm_[i];
      squares += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w);
      x = {x.x * by.x, x.y * by.y, x.z * by.z, x.w * by.w};
      largest = fmaxf(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))), largest);
    }
    return {lane_sum(squares), lane_max(largest)};
  }
  /// As halves, times `factor`; to: of the token's n-tile.
  __device__ __forceinline__ void store(float factor, int token, char* to) const {
    to += place(token, first_column());
#pragma unroll
    for (int i = 0; i < kEach; ++i) {  // columns that share no bits: their places add up
      const float4& x = x_[i];
      *reinterpret_cast<uint2*>(to + place(0, column(i))) = {pack_halves(x.x * factor, x.z * factor),
                                                             pack_halves(x.y * factor, x.w * factor)};
    }
  }

 private:
  __device__ __forceinline__ static int first_column() {
    const int lane = static_cast<int>(threadIdx.x) % 32, half = static_cast<int>(threadIdx.x) / 32 % 2;
    return half * (kColumns / 2) + lane / 8 * 64 + lane % 8 * 4;
  }
  __device__ __forceinline__ static constexpr int column(int i) {
    return i / 2 * q6_k_mma::kColumns + i % 2 * 32;
  }
  __device__ __forceinline__ static constexpr int place(int token, int column) {
    return column / q6_k_mma::kColumns * q6_k_mma::kTokenBytes +
           q6_k_mma::place_of_four(token, column % q6_k_mma::kColumns);
  }
  float4 x_[kEach], norm_[kEach];
};

template <int kNTiles>
__global__ void __launch_bounds__(kThreads, 1)
    norm_matmul_lm_head(const Timestamps timestamps, const __grid_constant__ Args p) {
#if __CUDA_ARCH__ == 900 || __CUDA_ARCH__ == 1000
  constexpr int kTokens = kNTiles * kNTileTokens;
  constexpr Ring kRing = ring_for(kNTiles);
  constexpr int kSlots = kRing.slots, kSlotBytes = kRing.slot_bytes(), kPieces = kSupers / kRing.supers;
  extern __shared__ __align__(128) char lm_head_shared[];
  __shared__ __align__(8) uint64_t barriers[kWarps * kSlots];
  __shared__ float2 parts[kTokens][2];  // of rows' halves: squares, largest
  __shared__ float factors[kTokens];
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = warp_index(), g = lane / 4, t = lane % 4;
  const PdlLink pdl(timestamps);
  char* const rings = lm_head_shared + (1024 - shared_address(lm_head_shared) % 1024) % 1024;
  char* const ring = rings + warp * (kSlots * kSlotBytes);
  char* const tokens = rings + kWarps * kSlots * kSlotBytes;
  const uint32_t own_barriers = shared_address(barriers + warp * kSlots);
  if (threadIdx.x == 0) fetch_map(p.low), fetch_map(p.high);
  if (lane < kSlots) barrier_init(own_barriers + 8 * static_cast<uint32_t>(lane), 1), barrier_init_fence();
  __syncwarp();

  // A warp's tiles of 16 outputs, and what it asks for next.
  const int tiles = p.weight.rows / kRows, apart = static_cast<int>(gridDim.x) * kWarps;
  const int first = static_cast<int>(blockIdx.x) + warp * static_cast<int>(gridDim.x);
  int next = first, next_piece = 0;
  const auto ask = [&](int slot) {
    if (next >= tiles) return;
    if (is_elected()) {
      const uint32_t barrier = own_barriers + 8 * static_cast<uint32_t>(slot),
                     to = shared_address(ring) + static_cast<uint32_t>(slot * kSlotBytes);
      barrier_expect(barrier, kSlotBytes);
      copy_tile(p.low, next * kRows, next_piece * kRing.supers, to, barrier);
      copy_tile(p.high, next * kRows, next_piece * kRing.supers, to + kRing.low_bytes(), barrier);
    }
    if (++next_piece == kPieces) next_piece = 0, next += apart;
  };
  ask(0);

  // Scales of this lane's rows: groups' of its blocks, and those of all 256 columns.
  const int64_t row = p.weight.row(0, min(first, tiles - 1) * kRows + g);
  const uint8_t *scale_at = p.weight.scale + row * kScaleBytes + 4 * t,
                *super_at = p.weight.super + row * kSuperBytes;
  uint32_t scale[2], super[2];
  const auto load_scales = [&] {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = load_weight(reinterpret_cast<const uint32_t*>(scale_at + 8 * h * kScaleBytes));
      super[h] = load_weight(reinterpret_cast<const uint16_t*>(super_at + 8 * h * kSuperBytes));
    }
  };
  load_scales();

  const int rows = min(*p.rows, kTokens);  // uploaded before the step's first kernel: no wait
  pdl.wait();
#pragma unroll 1
  for (int n = 0; n < kNTiles; ++n) {
    // Rows that are not there are copies of the last one, whose products nobody stores.
    const int token = warp / 2, r = n * kNTileTokens + token;
    HalfRow half(p.in(max(min(r, rows - 1), 0)), p.norm);
    // Rows come before a second round of weights: what is asked for behind those waits for them.
    for (int slot = 1; n == 0 && slot < kSlots; ++slot) ask(slot);
    const float2 part = half.multiply();
    if (lane == 0) parts[r][warp % 2] = part;
    __syncthreads();
    const float2 one = parts[r][0], other = parts[r][1];
    const PowerOfTwo power = scale_for(fmaxf(one.y, other.y));
    half.store(power.factor, token, tokens + n * n_tile_bytes());
    if (lane == 0)
      factors[r] = power.inverse / sqrtf((one.x + other.x) / static_cast<float>(kColumns) + p.epsilon) *
                   q6_k_mma::kFactor;
  }
  __syncthreads();

  int slot = 0;
  uint32_t phase = 0;  // of the barriers: a round of the slots
  for (int tile = first; tile < tiles; tile += apart) {
    const int behind = tile + apart < tiles ? apart : 0;  // tiles to the next one, or none
    if (behind > 0 && lane < kRows + 2) {
      const int64_t of_next = p.weight.row(0, (tile + behind) * kRows);
      prefetch(lane < kRows ? p.weight.scale + (of_next + lane) * kScaleBytes
                            : p.weight.super + of_next * kSuperBytes + (lane - kRows) * 128);
    }
    float total[kNTiles][4] = {};
    for (int piece = 0; piece < kPieces; ++piece) {
      barrier_wait(own_barriers + 8 * static_cast<uint32_t>(slot), phase);
#pragma unroll
      for (int i = 0; i < kRing.supers; ++i) {
        const int at = piece * kRing.supers + i;
        const uint32_t own_scale[2] = {scale[0], scale[1]};
        const float by[2] = {fragments::low_half(super[0]), fragments::low_half(super[1])};
        const bool last = piece == kPieces - 1 && i == kRing.supers - 1;
        scale_at += last ? behind * kRows * kScaleBytes - (kSupers - 1) * (kScaleBytes / kSupers)
                         : kScaleBytes / kSupers;
        super_at += last ? behind * kRows * kSuperBytes - (kSupers - 1) * (kSuperBytes / kSupers)
                         : kSuperBytes / kSupers;
        load_scales();
        const char* const low = ring + slot * kSlotBytes + i * q6_k_mma::kLowBytes;
        const char* const high = ring + slot * kSlotBytes + kRing.low_bytes() + i * q6_k_mma::kHighBytes;
        float sum[kNTiles][4] = {};
        q6_k_mma::multiply(low, high, own_scale, tokens + at * q6_k_mma::kTokenBytes, n_tile_bytes(), sum);
#pragma unroll
        for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
          for (int j = 0; j < 4; ++j) total[n][j] = fmaf(sum[n][j], by[j / 2], total[n][j]);
        }
      }
      __syncwarp();
      ask(slot);
      if (++slot == kSlots) slot = 0, phase ^= 1;
    }
#pragma unroll
    for (int n = 0; n < kNTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int token = n * kNTileTokens + 2 * t + j;
        if (token >= rows) continue;
        float* const to = p.out(token) + (tile * kRows + g);
        to[0] = total[n][j] * factors[token], to[8] = total[n][j + 2] * factors[token];
      }
    }
  }
#endif
}

bool serves_norm_matmul(const Program& p, const Op& record, const Sizes& sizes) {
  const auto& op = std::get<NormMatmul>(record.args);
  const Tensor& weight = p[op.a.id];
  // A tile for every warp of the device; of fewer outputs, warps that share columns are faster.
  return sizes.rows > kNarrowRows && sizes.rows <= kMostRows &&
         (sizes.architecture == 90 || sizes.architecture == 100) && !op.b && !op.c &&
         weight.type == quant::Type::Q6_K && weight.columns() == kColumns && weight.shape[1] % kRows == 0 &&
         weight.shape[1] >= int64_t{kWarps} * sizes.sm_count * kRows && small_batch::in_fours(p[op.in.id]);
}
void launch_norm_matmul(const Program& p, const Op& record, const Context& c) {
  const auto& op = std::get<NormMatmul>(record.args);
  const Matrix weight = c.memory.matrix(op.a.id);
  const int n_tiles = small_batch::n_tiles_for(c.rows(p[op.in.id]));
  const Ring ring = ring_for(n_tiles);
  const auto map = [&](const uint8_t* plane, int line) {
    const int64_t row_bytes = int64_t{kSupers} * line;
    return map_tiles(plane + weight.first_row * row_bytes, row_bytes, weight.rows, line, kRows, ring.supers);
  };
  launch(c,
         n_tiles == 1   ? norm_matmul_lm_head<1>
         : n_tiles == 2 ? norm_matmul_lm_head<2>
                        : norm_matmul_lm_head<4>,
         {dim3(static_cast<unsigned>(c.sm_count)), dim3(kThreads), shared_bytes(n_tiles)},
         Args{map(weight.codes, q6_k_mma::kLowLine), map(weight.high, q6_k_mma::kHighLine), weight,
              flat(c.memory.rows(op.in.id)), flat(c.memory.rows(op.out_a.id)), count_of(p, op.in.id, c.step),
              c.memory.vector(op.norm.id), op.epsilon});
}

}  // namespace

const Kernel kNormMatmulLmHead{"lm_head of a small batch, norm fused", serves_norm_matmul,
                               launch_norm_matmul};

}  // namespace sluice::backend::cuda
