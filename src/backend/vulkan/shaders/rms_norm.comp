#version 450
#extension GL_GOOGLE_include_directive : require
// A workgroup normalises one head of one row.
#include "common.glsl"
#include "subgroups.glsl"
layout(local_size_x = 128) in;

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head, out_at, out_row, out_head, columns, rows_word;
  float epsilon;
} p;

void main() {
  uint row = gl_WorkGroupID.y, head = gl_WorkGroupID.x;
  if (row >= step_data.words[p.rows_word]) return;
  uint from = p.in_at + row * p.in_row + head * p.in_head, to = p.out_at + row * p.out_row + head * p.out_head;
  float squares = 0;
  for (uint c = gl_LocalInvocationID.x; c < p.columns; c += gl_WorkGroupSize.x) {
    float x = arena.numbers[from + c];
    squares += x * x;
  }
  float factor = inversesqrt(workgroup_sum(squares) / float(p.columns) + p.epsilon);
  for (uint c = gl_LocalInvocationID.x; c < p.columns; c += gl_WorkGroupSize.x)
    arena.numbers[to + c] = arena.numbers[from + c] * factor * vector_of(0, c);
}
