#version 450
#extension GL_GOOGLE_include_directive : require
// A row of activations becomes codes once for all workgroups of a product (coded_rows.glsl): of each of its heads
// 16 columns' codes after the other, then their steps. A norm of whole rows, by one workgroup, is in the steps.
#include "formats.glsl"
#include "runs.glsl"
const uint kSize = 256;
layout(local_size_x = kSize) in;
#include "subgroups.glsl"

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head;  // floats
  uint to_at, to_row, to_head;  // of 16 bytes
  uint columns, heads;
  uint rows_word;
  float epsilon;
  uint norm_at;
} p;
layout(constant_id = 0) const bool kNormed = false;
layout(constant_id = 1) const bool kAligned = true;
const uint kQuads = 1, kSteps = 1;
#include "coded_rows.glsl"

vec4 normed_four(uint from, uint c) {
  vec4 x = four_at(from + c, kAligned);
  return kNormed ? x * weights2.numbers[p.norm_at + (c >> 2)] : x;
}

void main() {
  uint row = gl_WorkGroupID.y, sixteens = p.columns / 16u;
  if (row >= step_data.words[p.rows_word]) return;
  uint from_row = p.in_at + row * p.in_row;
  float squares = 0, factor = 1;
  if (kNormed) {
    for (uint c = 4u * gl_LocalInvocationID.x; c < p.columns; c += 4u * kSize) {
      vec4 x = four_at(from_row + c, kAligned);
      squares += dot(x, x);
    }
    factor = inversesqrt(workgroup_sum(squares) / float(p.columns) + p.epsilon);
  }
  for (uint n = gl_GlobalInvocationID.x; n < p.heads * sixteens; n += kSize * gl_NumWorkGroups.x) {
    uint head = n / sixteens, item = n % sixteens, from = from_row + head * p.in_head, c = 16u * item;
    uint to = 4u * (p.to_at + row * p.to_row + head * p.to_head), steps_at = to + 4u * sixteens;
    vec4 x[4];
    float most = 0;
    [[unroll]] for (uint k = 0; k < 4u; ++k) {
      x[k] = normed_four(from, c + 4u * k);
      most = max(most, max(largest_of(x[k]), largest_of(normed_four(from, (c ^ 16u) + 4u * k))));
    }
    Sixteen coded = coded_sixteen(x, most, factor);
    [[unroll]] for (uint k = 0; k < 4u; ++k) arena.numbers[to + 4u * item + k] = uintBitsToFloat(coded.codes[k]);
    arena.numbers[steps_at + 2u * item] = coded.steps.x, arena.numbers[steps_at + 2u * item + 1u] = coded.steps.y;
  }
}
