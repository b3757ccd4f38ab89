#version 450
#extension GL_GOOGLE_include_directive : require
// Few rows times a matrix: a subgroup has some rows of the weight at a time, and its invocations take turns at
// their units, with kAhead of them under way: a row is read in one or a few trips to memory. Normalising costs
// nothing here: the sum of squares comes along. Loops over arrays are unrolled throughout: what is indexed by a
// variable has no registers.
#include "formats.glsl"
#include "subgroups.glsl"
#include "product_params.glsl"
layout(local_size_x = 128) in;

void main() {
  uint rows = step_data.words[p.rows_word], first_row = gl_WorkGroupID.y * kRows, head = gl_WorkGroupID.z;
  if (first_row >= rows) return;
  uint matrix = head;
  if (kSelected) matrix = uint(arena.numbers[p.ids_at + first_row * p.ids_row + head]);
  uint weights = p.first + matrix * p.matrix, gates = p.gate_first + matrix * p.gate_matrix;
  uint units = (p.columns + 7u) / 8u;
  uint together = gl_NumSubgroups * kOutputs;
  for (uint n = gl_WorkGroupID.x * together + gl_SubgroupID * kOutputs; n < p.outputs;
       n += gl_NumWorkGroups.x * together) {
    float sums[kRows * kOutputs], gate_sums[kRows * kOutputs], squares[kRows];
    [[unroll]] for (uint i = 0; i < kRows * kOutputs; ++i) sums[i] = gate_sums[i] = 0;
    [[unroll]] for (uint r = 0; r < kRows; ++r) squares[r] = 0;
    for (uint first = gl_SubgroupInvocationID; first < units; first += kAhead * gl_SubgroupSize) {
      [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) {
        uint unit = min(first + ahead * gl_SubgroupSize, units - 1u);
        bool is_there = first + ahead * gl_SubgroupSize < units;  // what is not there is multiplied by zeros
        uvec2 c = columns8(kFormat, unit);
        vec4 xa[kRows], xb[kRows];
        [[unroll]] for (uint r = 0; r < kRows; ++r) {
          load_unit(min(first_row + r, rows - 1u), head, c, xa[r], xb[r]);
          if (!is_there) xa[r] = xb[r] = vec4(0);
          if (kNormed) {
            squares[r] += dot(xa[r], xa[r]) + dot(xb[r], xb[r]);
            xa[r] *= norm_weights(c.x), xb[r] *= norm_weights(c.y);
          }
        }
        [[unroll]] for (uint i = 0; i < kOutputs; ++i) {
          uint output_row = min(n + i, p.outputs - 1u);
          vec4 a, b;
          load_weights(kFormat, 0, weights + output_row * p.row, unit, c, a, b);
          [[unroll]] for (uint r = 0; r < kRows; ++r) sums[i * kRows + r] += dot(a, xa[r]) + dot(b, xb[r]);
          if (kGated) {
            load_weights(kGateFormat, 1, gates + output_row * p.gate_row, unit, c, a, b);
            [[unroll]] for (uint r = 0; r < kRows; ++r) gate_sums[i * kRows + r] += dot(a, xa[r]) + dot(b, xb[r]);
          }
        }
      }
    }
    [[unroll]] for (uint r = 0; r < kRows; ++r) {
      float factor = 1;
      if (kNormed) factor = inversesqrt(subgroupAdd(squares[r]) / float(p.columns) + p.epsilon);
      [[unroll]] for (uint i = 0; i < kOutputs; ++i) {
        float sum = factor * subgroupAdd(sums[i * kRows + r]), gate = 0;
        if (kGated) gate = factor * subgroupAdd(gate_sums[i * kRows + r]);
        uint row = first_row + r, at = p.out_at + row * p.out_row + head * p.out_head + n + i;
        if (!subgroupElect() || row >= rows || n + i >= p.outputs) continue;
        if (kAdds) sum += arena.numbers[p.other_at + row * p.other_row + n + i];
        arena.numbers[at] = kGated ? swiglu(gate, sum) : sum;
      }
    }
  }
}
