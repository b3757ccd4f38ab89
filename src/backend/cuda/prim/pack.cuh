// A row of activations to halves (gemm/gemm.h), normed before where asked: what kernels that pack are made
// of.
#pragma once

#include "backend/cuda/gemm/gemm.h"
#include "backend/cuda/prim/mma.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

inline constexpr int kPackThreads = 256;

/// The power of two that takes numbers up to `largest` below 2^15, and its inverse, both normal.
struct PowerOfTwo {
  float factor, inverse;
};
__device__ inline PowerOfTwo scale_for(float largest) {
  const int exponent = min(max(static_cast<int>(__float_as_uint(largest) >> 23), 15), 254);
  return {__uint_as_float(static_cast<uint32_t>(268 - exponent) << 23),
          __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23)};
}

/// The numbers at columns [c, c + 4) of a row, zeroes beyond its end.
__device__ inline float4 four_of(const float* row, int c, int columns, bool aligned) {
  if (aligned && c + 4 <= columns) return *reinterpret_cast<const float4*>(row + c);
  float4 v{0, 0, 0, 0};
  if (c < columns) v.x = row[c];
  if (c + 1 < columns) v.y = row[c + 1];
  if (c + 2 < columns) v.z = row[c + 2];
  if (c + 3 < columns) v.w = row[c + 3];
  return v;
}

/// The row that a slot holds; null: none, which in an n-tile means zeroes.
struct Source {
  const float* row;
  bool there;
};
__device__ inline Source source_of(const PackPlan& p, int slot) {
  if (p.list != nullptr) {
    if (slot >= *p.slots) return {nullptr, false};
    const int32_t pair = p.list[slot];
    if (pair < 0) return {nullptr, false};  // nobody stores what it is multiplied to
    return {p.in(pair / p.divisor, p.heads_of_pairs ? pair % p.divisor : 0), true};
  }
  if (p.heads_of_pairs) {
    return {p.in(slot / p.divisor, slot % p.divisor), slot < *p.slots * p.divisor};
  }
  const int r = slot % p.per_matrix;
  if (r < *p.slots) return {p.in(r, slot / p.per_matrix), true};
  return {nullptr, p.n_tiles};
}

__device__ inline void write_pairs(const PackPlan& p, int slot, int chunks, int chunk, float4 v,
                                   float factor) {
  const int lane = threadIdx.x % 32, block = lane / 8, pair = 4 * (lane % 4) + 2 * (lane / 4 % 2);
  const uint32_t even = pack_halves(v.x * factor, v.z * factor),
                 odd = pack_halves(v.y * factor, v.w * factor);
  auto* const words = reinterpret_cast<uint32_t*>(p.data);
  if (p.n_tiles) {  // pair q of the four blocks is a unit of 16 bytes, unit q % 8 of its 64 columns
    const int token = slot % kNTileTokens;
    const int64_t n_tile =
        (int64_t{slot / kGroupTokens} * chunks + chunk) * 4 + slot % kGroupTokens / kNTileTokens;
    const int64_t atom = n_tile * 2 + pair / 8;
    uint32_t* const of_token = words + atom * 256 + token * 32 + block;
    of_token[(pair % 8 ^ token) * 4] = even;
    of_token[((pair + 1) % 8 ^ token) * 4] = odd;
  } else {
    *reinterpret_cast<uint2*>(words + (int64_t{slot} * chunks + chunk) * 64 + pair / 4 * 16 + block * 4 +
                              pair % 4) = {even, odd};
  }
}

struct NothingElse {
  __device__ void operator()(int /*chunk*/, float4 /*values*/) const {}
};

/// kWarps warps pack a slot, a warp a chunk of 128 columns at a time; lane l takes four columns of it: those
/// of pairs q and q + 1 of block l / 8. The first chunks of each warp stay in registers between the two
/// passes. also: what else a warp does with a chunk's numbers, four a lane.
template <int kWarps, typename Also = NothingElse>
__device__ inline void pack_slot(const PackPlan& p, int slot, const Also& also = {}) {
  constexpr int kHeld = 4;
  // Aligned, so that no load of some of one half covers what is written to the other.
  __shared__ __align__(16) float partial[2][kPackThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % kWarps;
  const Source source = source_of(p, slot);
  if (!source.there) return;
  const int columns = p.in.columns, chunks = static_cast<int>(padded_columns(columns) / kChunkColumns);
  const bool aligned = reinterpret_cast<uintptr_t>(source.row) % 16 == 0;
  const auto load = [&](int chunk) {
    if (source.row == nullptr || chunk >= chunks) return float4{0, 0, 0, 0};
    return four_of(source.row, chunk * kChunkColumns + lane * 4, columns, aligned);
  };
  const auto larger = [](float m, float4 v) {
    return fmaxf(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))), m);
  };

  float4 held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) held[i] = load(warp + i * kWarps);
  if (p.norm != nullptr) {
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      squares +=
          held[i].x * held[i].x + held[i].y * held[i].y + held[i].z * held[i].z + held[i].w * held[i].w;
    squares = lane_sum(squares);
    if constexpr (kWarps > 1) {
      if (lane == 0) partial[1][warp] = squares;
      __syncthreads();
      squares = 0;
#pragma unroll
      for (int i = 0; i < kWarps; ++i) squares += partial[1][i];
    }
    const float inverse = 1.0f / sqrtf(squares / static_cast<float>(columns) + p.epsilon);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const float4 by = four_of(p.norm, (warp + i * kWarps) * kChunkColumns + lane * 4, columns, true);
      held[i].x *= inverse * by.x, held[i].y *= inverse * by.y;
      held[i].z *= inverse * by.z, held[i].w *= inverse * by.w;
    }
  }
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) largest = larger(largest, held[i]);
  for (int chunk = warp + kHeld * kWarps; chunk < chunks; chunk += kWarps)
    largest = larger(largest, load(chunk));
  largest = lane_max(largest);
  if constexpr (kWarps > 1) {  // one slot a thread block
    if (lane == 0) partial[0][warp] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kWarps; ++i) largest = fmaxf(largest, partial[0][i]);
  }
  const PowerOfTwo scale = scale_for(largest);
  if (warp == 0 && lane == 0) p.scale[slot] = scale.inverse;

#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int chunk = warp + i * kWarps;
    if (chunk < chunks) write_pairs(p, slot, chunks, chunk, held[i], scale.factor), also(chunk, held[i]);
  }
  for (int chunk = warp + kHeld * kWarps; chunk < chunks; chunk += kWarps) {
    const float4 v = load(chunk);
    write_pairs(p, slot, chunks, chunk, v, scale.factor), also(chunk, v);
  }
}

}  // namespace sluice::backend::cuda
