#version 450
#extension GL_GOOGLE_include_directive : require
// A row of activations, or a head of it, becomes codes once for all workgroups of a product (coded_rows.glsl):
// 16 columns' codes after the other, then their steps. A norm is in the steps.
#include "formats.glsl"
#include "runs.glsl"
const uint kSize = 256;
layout(local_size_x = kSize) in;
#include "subgroups.glsl"

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head;  // floats
  uint to_at, to_row, to_head;  // of 16 bytes
  uint columns;
  uint rows_word;
  float epsilon;
  uint norm_at;
} p;
layout(constant_id = 0) const bool kNormed = false;
layout(constant_id = 1) const bool kAligned = true;
const uint kQuads = 1, kSteps = 1;
#include "coded_rows.glsl"

uint from;
vec4 normed_four(uint c) {
  vec4 x = four_at(from + c, kAligned);
  return kNormed ? x * weights2.numbers[p.norm_at + (c >> 2)] : x;
}

void main() {
  uint row = gl_WorkGroupID.y, head = gl_WorkGroupID.z, sixteens = p.columns / 16u;
  if (row >= step_data.words[p.rows_word]) return;
  from = p.in_at + row * p.in_row + head * p.in_head;
  uint to = 4u * (p.to_at + row * p.to_row + head * p.to_head), steps_at = to + 4u * sixteens;
  float squares = 0, factor = 1;
  if (kNormed) {
    for (uint c = 4u * gl_LocalInvocationID.x; c < p.columns; c += 4u * kSize) {
      vec4 x = four_at(from + c, kAligned);
      squares += dot(x, x);
    }
    factor = inversesqrt(workgroup_sum(squares) / float(p.columns) + p.epsilon);
  }
  for (uint item = gl_LocalInvocationID.x; item < sixteens; item += kSize) {
    uint c = 16u * item;
    vec4 x[4];
    float most = 0;
    [[unroll]] for (uint k = 0; k < 4u; ++k) {
      x[k] = normed_four(c + 4u * k);
      most = max(most, max(largest_of(x[k]), largest_of(normed_four((c ^ 16u) + 4u * k))));
    }
    Sixteen coded = coded_sixteen(x, most, factor);
    [[unroll]] for (uint k = 0; k < 4u; ++k) arena.numbers[to + 4u * item + k] = uintBitsToFloat(coded.codes[k]);
    arena.numbers[steps_at + 2u * item] = coded.steps.x, arena.numbers[steps_at + 2u * item + 1u] = coded.steps.y;
  }
}
