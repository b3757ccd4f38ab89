// One row of activations against streams of weight rows: what the kernels of batch 1 are made of. Groups of
// lanes of a warp take a weight row each and walk over its blocks, two blocks a lane at a time, and ask for
// the next two before they multiply the last; the first are asked for before the kernel waits for its
// predecessor. Activations lie in shared memory as in activations.cuh; they are quantised before a norm's
// factor is known, which scales the products instead. Code is kept short: every warp of the device runs all
// of it.
#pragma once

#include "backend/cuda/prim/activations.cuh"
#include "backend/cuda/prim/codes.cuh"
#include "backend/cuda/prim/dot.cuh"
#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

inline constexpr int kGemvThreads = 512;
inline constexpr int kGemvWarps = kGemvThreads / 32;

/// This warp among all of the launch, dealt round the SMs.
__device__ inline int warp_of_launch() { return static_cast<int>(threadIdx.x / 32 * gridDim.x + blockIdx.x); }
__device__ inline int warps_of_launch() { return static_cast<int>(gridDim.x) * kGemvWarps; }

/// How a weight's rows are shared by lanes.
struct RowShape {
  int blocks;  ///< of 32 columns, a row
  int lanes;   ///< a row; a power of two, at most 32
  int rows;    ///< of a matrix

  SLUICE_BOTH int group() const { return 32 / lanes; }                      ///< rows a warp takes at once
  SLUICE_BOTH int tasks() const { return (rows + group() - 1) / group(); }  ///< of a warp, a matrix
  // `lanes` is a power of two, which a compiler does not know: its divisions take a hundred instructions.
  __device__ int lane() const { return static_cast<int>(threadIdx.x) & (lanes - 1); }
  /// This lane's row of a task; the last task's spare lanes take the last row again.
  __device__ int row_of(int task) const {
    const int shift = __ffs(lanes) - 1;
    return (task << (5 - shift)) + (static_cast<int>(threadIdx.x) % 32 >> shift);
  }
};
inline RowShape row_shape(const Matrix& m) { return {m.columns / 32, lanes_for(m.columns), m.rows}; }

/// Blocks that a lane asks for at once: what some 25 registers hold.
template <Type T>
constexpr int at_once() {
  constexpr int kWords = Traits<T>::codes_words + Traits<T>::high_words + 1;
  return 26 / kWords > 5 ? 5 : 26 / kWords;
}

/// A piece of a weight row on its way: kBlocks blocks of a lane.
template <Type T, int kBlocks = at_once<T>()>
struct Asked {
  static constexpr int kAtOnce = kBlocks;
  Raw<T> raw[kBlocks];

  /// The row's blocks b, b + lanes, ...; first: the row's first block in the planes.
  __device__ void ask(const CodePlanes& at, int first, int b, const RowShape& shape) {
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int block = b + i * shape.lanes;
      if (block < shape.blocks) raw[i] = load_block<T>(at, first + block);
    }
  }
  /// Their products; the row's activations begin at x's block first_x.
  __device__ float times(const Activations& x, int b, const RowShape& shape, int first_x = 0) const {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kBlocks; ++i) {
      const int block = b + i * shape.lanes;
      if (block < shape.blocks) sum += multiply<T>(raw[i], x.block(0, first_x + block));
    }
    return sum;
  }
};

/// load_result (sync.cuh) of four.
__device__ inline float4 load_four(const float4* at) {
  float4 v;
  asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "l"(at));
  return v;
}

/// Copies 16 bytes to shared memory without waiting; the thread sees them after wait_for_copies.
__device__ inline void copy_async(void* to, const void* from) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
/// 4 bytes.
__device__ inline void copy_async_four(void* to, const void* from) {
  asm volatile(
      "cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from)
      : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Asks for a norm's weights ahead, 8 to each thread that will use them in quantize_eights.
template <int kThreads = kGemvThreads>
__device__ inline void fetch_norm(float* to, const float* norm, int columns) {
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at < columns / 8; at += kThreads) {
    copy_async(to + 8 * at, norm + 8 * at);
    copy_async(to + 8 * at + 4, norm + 8 * at + 4);
  }
}

/// Quantises eight numbers, piece `at` of the first row of x, where that is there. Four neighbouring lanes
/// share a block and call it together. weight: of what the codes stand for.
__device__ inline void put_eight(const Activations& x, int at, bool valid, const float (&v)[8],
                                 float weight) {
  float largest = 0;
#pragma unroll
  for (const float one : v) largest = fmaxf(largest, fabsf(one));
  largest = lane_max(largest, 4);
  const float inverse = largest > 0 ? __fdividef(127.0f, largest) : 0.0f;
  // Added to 1.5 * 2^23 a number is rounded to a whole one, and its low byte is the code.
  uint32_t codes[8], words[2];
#pragma unroll
  for (int i = 0; i < 8; ++i) codes[i] = __float_as_uint(fmaf(v[i], inverse, 12582912.0f));
#pragma unroll
  for (int w = 0; w < 2; ++w) {
    words[w] = __byte_perm(__byte_perm(codes[4 * w], codes[4 * w + 1], 0x0040),
                           __byte_perm(codes[4 * w + 2], codes[4 * w + 3], 0x0040), 0x5410);
  }
  constexpr int kOnes = 0x01010101;
  int sum = __dp4a(static_cast<int>(words[1]), kOnes, __dp4a(static_cast<int>(words[0]), kOnes, 0));
  sum += __shfl_xor_sync(kWholeWarp, sum, 1);
  const int other = __shfl_xor_sync(kWholeWarp, sum, 2);
  if (!valid) return;
  char* const row = dynamic_shared(x.offset);
  const int blocks = x.columns / 32, block = at / 4, piece = at % 4;
  *reinterpret_cast<uint2*>(row + (piece < 2 ? 0 : blocks * 16) + block * 16 + piece % 2 * 8) =
      make_uint2(words[0], words[1]);
  if (piece == 0) {
    reinterpret_cast<int2*>(row + blocks * 32)[block] =
        make_int2(__float_as_int(largest * (1.0f / 127.0f) * weight), (sum & 0xffff) | other << 16);
  }
}

/// Quantises numbers into the blocks of x: piece `at` of 8 columns from source(at) (16-byte aligned), of
/// `pieces` (a multiple of 4), times a norm's weights where they are given (in shared memory, by fetch_norm).
/// meanwhile() is called while the first numbers are on their way. Four lanes share a block. Returns this
/// thread's part of the sum of squares of what a norm is for. The whole thread block calls it.
template <int kThreads = kGemvThreads, typename Source, typename Meanwhile>
__device__ inline float quantize_eights(const Activations& x, int pieces, const float* norm, Source source,
                                        Meanwhile meanwhile) {
  struct Eight {
    float4 low, high;
  };
  const auto load = [&](int at) {
    Eight v{};
    if (at < pieces) v.low = load_four(source(at)), v.high = load_four(source(at) + 1);
    return v;
  };
  float squares = 0;
  Eight next = load(static_cast<int>(threadIdx.x));
  meanwhile();
#pragma unroll 1
  for (int at = static_cast<int>(threadIdx.x); at / 32 * 32 < pieces; at += kThreads) {
    float v[8] = {next.low.x,  next.low.y,  next.low.z,  next.low.w,
                  next.high.x, next.high.y, next.high.z, next.high.w};
    next = load(at + kThreads);
    const bool valid = at < pieces;
    if (norm != nullptr && valid) {
      const float4 c = reinterpret_cast<const float4*>(norm)[2 * at];
      const float4 d = reinterpret_cast<const float4*>(norm)[2 * at + 1];
      const float weights[8] = {c.x, c.y, c.z, c.w, d.x, d.y, d.z, d.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) squares += v[i] * v[i], v[i] *= weights[i];
    }
    put_eight(x, at, valid, v, 1.0f);
  }
  return squares;
}

/// A whole row of x.columns numbers.
template <int kThreads = kGemvThreads, typename Meanwhile>
__device__ inline float quantize_row(const Activations& x, const float* in, const float* norm,
                                     Meanwhile meanwhile) {
  return quantize_eights<kThreads>(
      x, x.columns / 8, norm, [&](int at) { return reinterpret_cast<const float4*>(in) + 2 * at; },
      meanwhile);
}

/// Copies a row that another kernel has quantised; the block meets after wait_for_copies.
template <int kThreads = kGemvThreads>
__device__ inline void copy_quantized(const Activations& x, const char* from) {
  char* const to = dynamic_shared(x.offset);
#pragma unroll 1
  for (int at = 16 * static_cast<int>(threadIdx.x); at < Activations::bytes_size(x.columns);
       at += 16 * kThreads)
    copy_async(to + at, from + at);
}

/// What norms the products: 1 / sqrt(mean of squares + epsilon). The thread block meets; partial: shared
/// memory of kWarps floats, those of the block.
template <int kWarps = kGemvWarps>
__device__ inline float reduce_for_norm(float squares, float* partial, int columns, float epsilon) {
  squares = lane_sum(squares);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = squares;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; w += 4) {
    const float4 four = *reinterpret_cast<const float4*>(partial + w);
    sum += (four.x + four.y) + (four.z + four.w);
  }
  return rsqrtf(sum / static_cast<float>(columns) + epsilon);
}

}  // namespace sluice::backend::cuda
