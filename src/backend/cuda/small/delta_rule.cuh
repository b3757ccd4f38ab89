// What both forms of delta_rule take: row by row (states.cu) and in chunks (delta_rule_chunked.cu).
#pragma once

#include "backend/cuda/host/kernel.h"
#include "backend/cuda/host/memory.h"
#include "program/op.h"

namespace sluice::backend::cuda {

struct DeltaArgs {
  Rows<float> q, k, v, decay, beta, out;
  const float *rate, *bias;
  State state;
  int layer;
  bool in_turns;
};

inline DeltaArgs delta_args(const program::DeltaRule& op, const Context& c) {
  return {c.memory.rows(op.q.id),
          c.memory.rows(op.k.id),
          c.memory.rows(op.v.id),
          c.memory.rows(op.decay.id),
          c.memory.rows(op.beta.id),
          c.memory.rows(op.out.id),
          c.memory.vector(op.rate.id),
          c.memory.vector(op.bias.id),
          c.memory.state(op.state.id),
          op.cache_layer,
          op.in_turns};
}

/// Number i of a row, its heads one after the other.
__device__ __forceinline__ float number_of(const Rows<float>& rows, int row, int i) {
  return __ldcg(rows(row, i / rows.columns) + i % rows.columns);
}

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

}  // namespace sluice::backend::cuda
