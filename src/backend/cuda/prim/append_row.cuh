// A row enters the cache of latent attention, by a block of threads: what mla_query of several rows does
// beside its products.
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

/// A block of threads: the latent normed, the key turned, both halves of the cache's row.
__device__ inline void append_row(const CacheRows& p, const RopeTable& rope, int row) {
  __shared__ float partial[33];
  const int64_t slot = p.step.slots[row];
  const float* const from = p.kv(row);
  float squares = 0;
  for (int c = threadIdx.x; c < p.rank; c += static_cast<int>(blockDim.x)) squares += from[c] * from[c];
  const float inverse = 1.0f / sqrtf(block_sum(squares, partial) / static_cast<float>(p.rank) + p.epsilon);
  if (slot < 0) return;
  char* const to = p.cache.row(p.layer, slot);
  for (int c = threadIdx.x; c < p.rank; c += static_cast<int>(blockDim.x))
    put_number(p.cache, to, c, from[c] * inverse * __ldg(p.norm + c));
  const int half = (p.cache.columns - p.rank) / 2, position = p.step.positions[row];
  for (int i = threadIdx.x; i < half; i += static_cast<int>(blockDim.x)) {
    const Turn turn = rope.turn(position, i, p.factors);
    const int first = p.rank + rope.first(i), second = p.rank + rope.second(i, half);
    const float a = from[first], b = from[second];
    put_exact(p.cache, to, first, a * turn.cosine - b * turn.sine);
    put_exact(p.cache, to, second, a * turn.sine + b * turn.cosine);
  }
}

}  // namespace sluice::backend::cuda
