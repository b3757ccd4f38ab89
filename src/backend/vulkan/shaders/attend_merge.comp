#version 450
#extension GL_GOOGLE_include_directive : require
// What stretches of a context gave to a head becomes one.
#include "common.glsl"
layout(local_size_x = 128) in;

layout(push_constant) uniform Params {
  uint out_at, out_row, out_head, heads, value, stretches, partial_at;
} p;
layout(constant_id = 0) const bool kSinks = false;

void main() {
  uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
  if (row >= step_data.words[kRowsAt]) return;
  uint at = p.partial_at + (row * p.heads + head) * p.stretches * (p.value + 4u), each = p.value + 4u;
  float largest = kSinks ? vector_of(0, head) : -kInfinity, total = 0;
  for (uint s = 0; s < p.stretches; ++s) largest = max(largest, arena.numbers[at + s * each]);
  for (uint s = 0; s < p.stretches; ++s)
    total += arena.numbers[at + s * each + 1u] * exp(arena.numbers[at + s * each] - largest);
  if (kSinks) total += exp(vector_of(0, head) - largest);
  for (uint c = gl_LocalInvocationID.x; c < p.value; c += gl_WorkGroupSize.x) {
    float sum = 0;
    for (uint s = 0; s < p.stretches; ++s) {
      float weight = exp(arena.numbers[at + s * each] - largest);
      if (weight > 0.0) sum += weight * arena.numbers[at + s * each + 4u + c];
    }
    arena.numbers[p.out_at + row * p.out_row + head * p.out_head + c] = sum / total;
  }
}
