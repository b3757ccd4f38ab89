#version 450
#extension GL_GOOGLE_include_directive : require
// What stretches of a context gave to a head becomes one.
#include "common.glsl"
#include "subgroups.glsl"
layout(local_size_x = 128) in;

layout(push_constant) uniform Params {
  uint out_at, out_row, out_head, heads, value, partial_at;
} p;
layout(constant_id = 0) const bool kSinks = false;
layout(constant_id = 1) const uint kStretches = 1;

const uint kAhead = 8;  // stretches that are read together
shared float weights[kStretches + kAhead];

void main() {
  uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y, i = gl_LocalInvocationID.x, each = p.value + 4u;
  if (row >= step_data.words[kRowsAt]) return;
  uint at = p.partial_at + (row * p.heads + head) * kStretches * each;
  float sink = kSinks ? vector_of(0, head) : -kInfinity, largest = sink, total = 0;
  for (uint s = i; s < kStretches; s += gl_WorkGroupSize.x) largest = max(largest, arena.numbers[at + s * each]);
  largest = workgroup_max(largest);
  for (uint s = i; s < kStretches + kAhead; s += gl_WorkGroupSize.x) {
    weights[s] = s < kStretches ? exp(arena.numbers[at + s * each] - largest) : 0.0;
    if (s < kStretches) total += arena.numbers[at + s * each + 1u] * weights[s];
  }
  total = workgroup_sum(total);  // and a barrier behind the weights
  if (kSinks) total += exp(sink - largest);
  for (uint c = i; c < p.value / 4u; c += gl_WorkGroupSize.x) {
    vec4 sum = vec4(0);
    for (uint s = 0; s < kStretches; s += kAhead) {
      vec4 v[kAhead];
      [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead)
        v[ahead] = arena4.numbers[((at + min(s + ahead, kStretches - 1u) * each) >> 2) + 1u + c];
      [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) sum += weights[s + ahead] * v[ahead];
    }
    uint to = p.out_at + row * p.out_row + head * p.out_head + 4u * c;
    [[unroll]] for (uint e = 0; e < 4u; ++e) arena.numbers[to + e] = sum[e] / total;
  }
}
