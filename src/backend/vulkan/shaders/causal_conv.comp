#version 450
#extension GL_GOOGLE_include_directive : require
// A short convolution over a sequence's rows (program/ops/causal_conv.h): an invocation has a column, and the
// workgroup of a sequence's first row has all of them.
#include "common.glsl"
layout(local_size_x = 64) in;

layout(push_constant) uniform Params {
  uint in_at, in_row, out_at, out_row, columns, taps, layer, layers;
  uint positions_at, sequences_at, states_at;
} p;
layout(constant_id = 0) const bool kSilu = false;

void main() {
  uint c = gl_GlobalInvocationID.x, first = gl_WorkGroupID.y, rows = step_data.words[kRowsAt];
  if (first >= rows || c >= p.columns) return;
  uint sequence = step_data.words[p.sequences_at + first];
  if (first > 0u && step_data.words[p.sequences_at + first - 1u] == sequence) return;
  uint end = first + 1u;
  while (end < rows && step_data.words[p.sequences_at + end] == sequence) ++end;
  uint before = p.taps - 1u, each = before * p.columns;
  uint from = (step_data.words[p.states_at + 2u * first] * p.layers + p.layer) * each;
  uint to = (step_data.words[p.states_at + 2u * first + 1u] * p.layers + p.layer) * each;
  bool begins = step_data.words[p.positions_at + first] == 0u;
  for (uint r = first; r < end; ++r) {
    float sum = 0;
    for (uint k = 0; k < p.taps; ++k) {
      uint i = r - first + k;
      float x = i >= before ? arena.numbers[p.in_at + (first + i - before) * p.in_row + c]
                : begins    ? 0.0
                            : uintBitsToFloat(cache.words[from + i * p.columns + c]);
      sum += vector_of(0, c * p.taps + k) * x;
    }
    arena.numbers[p.out_at + r * p.out_row + c] = kSilu ? sum / (1.0 + exp(-sum)) : sum;
  }
  for (uint k = 0; k < before; ++k) {
    uint i = end - first + k;
    uint word = i >= before ? floatBitsToUint(arena.numbers[p.in_at + (first + i - before) * p.in_row + c])
                : begins    ? 0u
                            : cache.words[from + i * p.columns + c];
    cache.words[to + k * p.columns + c] = word;
  }
}
