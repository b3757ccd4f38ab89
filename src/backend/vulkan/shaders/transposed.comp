#version 450
#extension GL_GOOGLE_include_directive : require
// A product along the rows of the stored matrix, and rows of a table: an invocation has a unit of columns.
#include "formats.glsl"
layout(local_size_x = 64) in;

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head, out_at, out_row, out_head;
  uint first, matrix, row, inputs, columns, rows_word;
} p;
layout(constant_id = 0) const uint kFormat = 2;
layout(constant_id = 1) const bool kTable = false;  // the step's tokens name rows
layout(constant_id = 2) const uint kTokensAt = 0;

void put(uint at, uint column, vec4 v) {
  for (uint i = 0; i < 4; ++i) {
    if (column + i < p.columns) arena.numbers[at + column + i] = v[i];
  }
}

void main() {
  uint unit = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y, head = gl_WorkGroupID.z;
  if (row >= step_data.words[p.rows_word] || unit >= (p.columns + 7u) / 8u) return;
  uint weights = p.first + head * p.matrix, from = p.in_at + row * p.in_row + head * p.in_head;
  uvec2 c = columns8(kFormat, unit);
  vec4 first = vec4(0), second = vec4(0), a, b;
  if (kTable) {
    decode8(kFormat, 0, weights + step_data.words[kTokensAt + row] * p.row, unit, first, second);
  } else {
    for (uint i = 0; i < p.inputs; ++i) {
      decode8(kFormat, 0, weights + i * p.row, unit, a, b);
      float x = arena.numbers[from + i];
      first += x * a, second += x * b;
    }
  }
  uint to = p.out_at + row * p.out_row + head * p.out_head;
  put(to, c.x, first);
  put(to, c.y, second);
}
