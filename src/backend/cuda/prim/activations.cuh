// A row of activations in shared memory as products take it: eight bits under a float scale per 32 columns
// for blocked types, float32 for float types. Every thread block makes it for itself, which costs less than a
// kernel more.
//
// Layout of a row of K columns, `row_bytes` apart: K/32 pieces of 16 bytes (columns 0..15 of a block), K/32
// of 16 (columns 16..31), K/32 pairs of scale and sums, then, if `floats`, K float32.
#pragma once

#include "backend/cuda/prim/sync.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

/// One block of 32 activations: x = scale * code; sums: of codes 0..15 (low 16 bits) and 16..31.
struct ActivationBlock {
  int low[4], high[4];
  float scale;
  int sums;

  __device__ int first_sum() const { return static_cast<int16_t>(sums & 0xffff); }
  __device__ int second_sum() const { return sums >> 16; }
};

/// The block's shared memory that its launch asked for.
__device__ inline char* dynamic_shared(int offset) {
  extern __shared__ __align__(16) char memory[];
  return memory + offset;
}

/// Where rows of activations lie in the block's dynamic shared memory.
struct Activations {
  int offset;  ///< bytes
  int columns;
  bool bytes, floats;  ///< which of the two are there

  SLUICE_BOTH static int round16(int n) { return (n + 15) / 16 * 16; }
  SLUICE_BOTH static int bytes_size(int columns) { return (columns + 31) / 32 * 40; }
  SLUICE_BOTH static int row_bytes(int columns, bool bytes, bool floats) {
    return round16((bytes ? bytes_size(columns) : 0)) + round16(floats ? columns * 4 : 0);
  }
  __device__ int stride() const { return row_bytes(columns, bytes, floats); }
  __device__ float* float_row(int r) const {
    return reinterpret_cast<float*>(
        dynamic_shared(offset + r * stride() + (bytes ? round16(bytes_size(columns)) : 0)));
  }
  /// The scale of block b of the first row.
  __device__ float& scale(int b) const {
    return reinterpret_cast<float*>(dynamic_shared(offset + columns))[2 * b];
  }
  __device__ ActivationBlock block(int r, int b) const {
    const char* row = dynamic_shared(offset + r * stride());
    const int blocks = columns / 32;
    const int4 low = reinterpret_cast<const int4*>(row)[b];
    const int4 high = reinterpret_cast<const int4*>(row)[blocks + b];
    const int2 rest = reinterpret_cast<const int2*>(row + blocks * 32)[b];
    return {{low.x, low.y, low.z, low.w}, {high.x, high.y, high.z, high.w}, __int_as_float(rest.x), rest.y};
  }

  /// Stores four neighbouring columns from 4 * at on. All eight lanes of a block of 32 columns call it
  /// together
  /// (`at` % 8 runs over neighbouring lanes); the others of the warp too.
  __device__ void store(int r, int at, float4 x, bool valid) const {
    char* row = dynamic_shared(offset + r * stride());
    if (floats && valid) reinterpret_cast<float4*>(float_row(r))[at] = x;
    if (!bytes) return;
    const float largest = lane_max(fmaxf(fmaxf(fabsf(x.x), fabsf(x.y)), fmaxf(fabsf(x.z), fabsf(x.w))), 8);
    const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
    const auto code = [inverse](float v) { return __float2int_rn(v * inverse) & 255; };
    const int word = code(x.x) | code(x.y) << 8 | code(x.z) << 16 | code(x.w) << 24;
    int sum = __dp4a(word, 0x01010101, 0);
    sum += __shfl_xor_sync(kWholeWarp, sum, 1);
    sum += __shfl_xor_sync(kWholeWarp, sum, 2);
    const int other = __shfl_xor_sync(kWholeWarp, sum, 4);
    if (!valid) return;
    const int blocks = columns / 32, b = at / 8, piece = at % 8;
    reinterpret_cast<int*>(row + (piece < 4 ? 0 : blocks * 16) + b * 16)[piece % 4] = word;
    if (piece == 0) {
      reinterpret_cast<int2*>(row + blocks * 32)[b] =
          make_int2(__float_as_int(largest / 127.0f), (sum & 0xffff) | other << 16);
    }
  }

  /// Row r from float32 in global memory; norm: null, or weights of a root mean square norm that is applied
  /// first (partial: shared memory of 33 floats). The whole block calls it, and meets afterwards by itself.
  __device__ void fill(int r, const float* in, const float* norm, float epsilon, float* partial) const {
    if (columns % 4 != 0 || reinterpret_cast<size_t>(in) % 16 != 0)
      return fill_unaligned(r, in, norm, epsilon, partial);
    const float4* in4 = reinterpret_cast<const float4*>(in);
    const int pieces = columns / 4, threads = blockDim.x;
    const float4 zero = make_float4(0, 0, 0, 0);
    if (norm == nullptr) {
      for (int base = 0; base < pieces; base += threads) {
        const int at = base + threadIdx.x;
        store(r, at, at < pieces ? __ldcg(in4 + at) : zero, at < pieces);
      }
      return;
    }
    constexpr int kResident = 4;  // pieces a thread that stay in registers between the two passes
    float4 kept[kResident];
    float squares = 0;
    for (int i = 0; i < kResident; ++i) {
      const int at = i * threads + threadIdx.x;
      kept[i] = at < pieces ? __ldcg(in4 + at) : zero;
      squares +=
          kept[i].x * kept[i].x + kept[i].y * kept[i].y + kept[i].z * kept[i].z + kept[i].w * kept[i].w;
    }
    for (int at = kResident * threads + threadIdx.x; at < pieces; at += threads) {
      const float4 x = __ldcg(in4 + at);
      squares += x.x * x.x + x.y * x.y + x.z * x.z + x.w * x.w;
    }
    const float inverse = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(columns) + epsilon);
    const auto normed = [&](float4 x, int at) {
      const float4 w = __ldg(reinterpret_cast<const float4*>(norm) + at);
      return make_float4(x.x * inverse * w.x, x.y * inverse * w.y, x.z * inverse * w.z, x.w * inverse * w.w);
    };
    for (int i = 0; i < kResident; ++i) {
      const int at = i * threads + threadIdx.x;
      if (i * threads < pieces) store(r, at, at < pieces ? normed(kept[i], at) : zero, at < pieces);
    }
    for (int base = kResident * threads; base < pieces; base += threads) {
      const int at = base + threadIdx.x;
      store(r, at, at < pieces ? normed(__ldcg(in4 + at), at) : zero, at < pieces);
    }
  }

  /// The same for rows that no 16-byte loads reach: a lane gathers four columns one by one.
  __device__ void fill_unaligned(int r, const float* in, const float* norm, float epsilon,
                                 float* partial) const {
    float inverse = 1;
    if (norm != nullptr) {
      float squares = 0;
      for (int c = threadIdx.x; c < columns; c += blockDim.x) squares += __ldcg(in + c) * __ldcg(in + c);
      inverse = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(columns) + epsilon);
    }
    const auto value = [&](int c) {
      if (c >= columns) return 0.0f;
      return norm != nullptr ? __ldcg(in + c) * inverse * __ldg(norm + c) : __ldcg(in + c);
    };
    if (!bytes) {
      for (int c = threadIdx.x; c < columns; c += blockDim.x) float_row(r)[c] = value(c);
      return;
    }
    const int pieces = columns / 4;
    for (int base = 0; base < pieces; base += blockDim.x) {
      const int at = base + threadIdx.x, c = 4 * at;
      store(r, at, make_float4(value(c), value(c + 1), value(c + 2), value(c + 3)), at < pieces);
    }
  }
};

}  // namespace sluice::backend::cuda
