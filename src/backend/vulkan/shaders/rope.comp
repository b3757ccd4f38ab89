#version 450
#extension GL_GOOGLE_include_directive : require
// An invocation turns a pair of columns, by the angles that the host computed for the step's rows, or passes
// on a column that does not turn.
#include "common.glsl"
layout(local_size_x = 64) in;

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head, out_at, out_row, out_head;
  uint heads, pairs, passed, angles_at;
} p;
layout(constant_id = 0) const bool kHalves = false;

void main() {
  uint each = p.pairs + p.passed, head = gl_GlobalInvocationID.x / each, i = gl_GlobalInvocationID.x % each;
  uint row = gl_WorkGroupID.y;
  if (row >= step_data.words[kRowsAt] || head >= p.heads) return;
  uint from = p.in_at + row * p.in_row + head * p.in_head, to = p.out_at + row * p.out_row + head * p.out_head;
  if (i >= p.pairs) {
    uint column = 2u * p.pairs + i - p.pairs;
    arena.numbers[to + column] = arena.numbers[from + column];
    return;
  }
  uint angle = p.angles_at + 2u * (row * p.pairs + i);
  float cosine = uintBitsToFloat(step_data.words[angle]), sine = uintBitsToFloat(step_data.words[angle + 1u]);
  uint first = kHalves ? i : 2u * i, second = kHalves ? p.pairs + i : 2u * i + 1u;
  float a = arena.numbers[from + first], b = arena.numbers[from + second];
  arena.numbers[to + first] = a * cosine - b * sine;
  arena.numbers[to + second] = a * sine + b * cosine;
}
