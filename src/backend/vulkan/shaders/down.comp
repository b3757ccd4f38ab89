#version 450
#extension GL_GOOGLE_include_directive : require
// What a row's experts give, weighted and added up, with the shared expert and what came before: a subgroup has
// some outputs of all of them.
#include "formats.glsl"
#include "subgroups.glsl"
layout(local_size_x = 128) in;

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head;
  uint out_at, out_row;
  uint other_at, other_row;      // what is added
  uint ids_at, ids_row, weights_at, weights_row;
  uint first, matrix, row;       // bytes, of the experts' weights
  uint shared_at, shared_row;    // the shared expert's rows
  uint shared_first, shared_bytes;
  uint columns, shared_columns, outputs, used;
} p;

layout(constant_id = 0) const uint kFormat = 2;
layout(constant_id = 1) const uint kSharedFormat = 2;
layout(constant_id = 2) const bool kShared = false;
layout(constant_id = 3) const uint kOutputs = 2;
layout(constant_id = 5) const bool kAdds = false;
layout(constant_id = 8) const bool kAligned = true;

void main() {
  uint row = gl_WorkGroupID.y;
  if (row >= step_data.words[kRowsAt]) return;
  uint together = gl_NumSubgroups * kOutputs;
  for (uint n = gl_WorkGroupID.x * together + gl_SubgroupID * kOutputs; n < p.outputs;
       n += gl_NumWorkGroups.x * together) {
    float sums[kOutputs];
    for (uint i = 0; i < kOutputs; ++i) sums[i] = 0;
    for (uint k = 0; k < p.used; ++k) {
      float weight = arena.numbers[p.weights_at + row * p.weights_row + k];
      uint expert = uint(arena.numbers[p.ids_at + row * p.ids_row + k]);
      uint from = p.in_at + row * p.in_row + k * p.in_head, weights = p.first + expert * p.matrix;
      for (uint unit = gl_SubgroupInvocationID; unit < p.columns / 8u; unit += gl_SubgroupSize) {
        uvec2 c = columns8(kFormat, unit);
        vec4 xa = weight * four_at(from + c.x, kAligned), xb = weight * four_at(from + c.y, kAligned);
        for (uint i = 0; i < kOutputs; ++i) {
          vec4 a, b;
          decode8(kFormat, 0, weights + min(n + i, p.outputs - 1u) * p.row, unit, a, b);
          sums[i] += dot(a, xa) + dot(b, xb);
        }
      }
    }
    if (kShared) {
      uint from = p.shared_at + row * p.shared_row;
      for (uint unit = gl_SubgroupInvocationID; unit < p.shared_columns / 8u; unit += gl_SubgroupSize) {
        uvec2 c = columns8(kSharedFormat, unit);
        vec4 xa = four_at(from + c.x, kAligned), xb = four_at(from + c.y, kAligned);
        for (uint i = 0; i < kOutputs; ++i) {
          vec4 a, b;
          decode8(kSharedFormat, 1, p.shared_first + min(n + i, p.outputs - 1u) * p.shared_bytes, unit, a, b);
          sums[i] += dot(a, xa) + dot(b, xb);
        }
      }
    }
    for (uint i = 0; i < kOutputs; ++i) {
      float sum = subgroupAdd(sums[i]);
      if (!subgroupElect() || n + i >= p.outputs) continue;
      if (kAdds) sum += arena.numbers[p.other_at + row * p.other_row + n + i];
      arena.numbers[p.out_at + row * p.out_row + n + i] = sum;
    }
  }
}
