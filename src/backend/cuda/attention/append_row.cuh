// A row enters the cache of latent attention, by a thread block: what mla_query of several rows does beside
// its products.
#pragma once

#include "backend/cuda/prim/cache_row.cuh"
#include "backend/cuda/prim/rope.cuh"
#include "backend/cuda/prim/warp.cuh"

namespace sluice::backend::cuda {

/// What of a step's rows becomes rows of the cache.
struct CacheRows {
  StepView step;
  Cache cache;
  int32_t layer, rank;
  Rows<float> kv;
  const float *norm, *factors;
  float epsilon;
};

/// What of a row's way into the cache is known before its numbers are.
struct RowToAppend {
  int64_t slot;
  int32_t position;
  SinCos sin_cos;  ///< of this thread's pair
};
__device__ inline RowToAppend row_to_append(const CacheRows& p, const RopeTable& rope, int row) {
  RowToAppend ahead{p.step.slots[row], p.step.positions[row], {}};
  const int half = (p.cache.columns - p.rank) / 2, i = static_cast<int>(threadIdx.x);
  if (i < half) ahead.sin_cos = rope.sin_cos(ahead.position, i, p.factors);
  return ahead;
}

/// A thread block: the latent normed, the key rotated, both halves of the cache's row. A thread's first
/// numbers stay in registers, and what is rotated is asked for together with them.
__device__ inline void append_row(const CacheRows& p, const RopeTable& rope, int row,
                                  const RowToAppend& ahead) {
  constexpr int kHeld = 2;
  __shared__ float partial[33];
  const float* const from = p.kv(row);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int half = (p.cache.columns - p.rank) / 2;
  float held[kHeld], norm[kHeld], pair[2] = {};
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int c = thread + i * threads;
    held[i] = c < p.rank ? from[c] : 0.0f, norm[i] = c < p.rank ? __ldg(p.norm + c) : 0.0f;
  }
  if (thread < half)
    pair[0] = from[p.rank + rope.first(thread)], pair[1] = from[p.rank + rope.second(thread, half)];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) squares += held[i] * held[i];
  for (int c = thread + kHeld * threads; c < p.rank; c += threads) squares += from[c] * from[c];
  const float inverse = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(p.rank) + p.epsilon);
  if (ahead.slot < 0) return;
  char* const to = p.cache.row(p.layer, ahead.slot);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int c = thread + i * threads;
    if (c < p.rank) put_number(p.cache, to, c, held[i] * inverse * norm[i]);
  }
  for (int c = thread + kHeld * threads; c < p.rank; c += threads)
    put_number(p.cache, to, c, from[c] * inverse * __ldg(p.norm + c));
  for (int i = thread; i < half; i += threads) {
    const SinCos sin_cos = i == thread ? ahead.sin_cos : rope.sin_cos(ahead.position, i, p.factors);
    const int first = p.rank + rope.first(i), second = p.rank + rope.second(i, half);
    const float a = i == thread ? pair[0] : from[first], b = i == thread ? pair[1] : from[second];
    put_exact(p.cache, to, first, a * sin_cos.cosine - b * sin_cos.sine);
    put_exact(p.cache, to, second, a * sin_cos.sine + b * sin_cos.cosine);
  }
}
__device__ inline void append_row(const CacheRows& p, const RopeTable& rope, int row) {
  append_row(p, rope, row, row_to_append(p, rope, row));
}

}  // namespace sluice::backend::cuda
