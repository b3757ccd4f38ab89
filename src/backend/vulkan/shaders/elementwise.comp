#version 450
#extension GL_GOOGLE_include_directive : require
// Ops whose results are one number of each operand, or a few: an invocation has one.
#include "common.glsl"
layout(local_size_x = 128) in;

layout(push_constant) uniform Params {
  uint a_at, a_row, a_head;
  uint b_at, b_row, b_head;
  uint out_at, out_row, out_head;
  uint columns, count, rows_word;
  float alpha, limit, shift;
  uint onto_at, onto_row;  // what combined experts are added to
} p;
layout(constant_id = 0) const uint kOp = 0;
layout(constant_id = 1) const bool kOnto = false;
const uint kAdd = 0, kSiluMul = 1, kAddBias = 2, kExpertBias = 3, kExpertCombine = 4, kTemperature = 5,
           kGatherRows = 6, kSigmoidMul = 7, kScale = 8;

void main() {
  uint column = gl_GlobalInvocationID.x, head = gl_WorkGroupID.y, row = gl_WorkGroupID.z;
  if (row >= step_data.words[p.rows_word] || column >= p.columns) return;
  uint from = row;
  if (kOp == kGatherRows) from = step_data.words[p.count + row];
  uint a = p.a_at + from * p.a_row + head * p.a_head, b = p.b_at + row * p.b_row + head * p.b_head;
  float value = 0;
  if (kOp == kExpertCombine) {
    if (kOnto) value = arena.numbers[p.onto_at + row * p.onto_row + column];
    for (uint k = 0; k < p.count; ++k)
      value += arena.numbers[b + k] * arena.numbers[a + k * p.a_head + column];
  } else {
    value = arena.numbers[a + column];
  }
  if (kOp == kAdd) value += arena.numbers[b + column];
  if (kOp == kSiluMul) {
    float g = min(value, p.limit), u = clamp(arena.numbers[b + column], -p.limit, p.limit);
    value = g / (1.0 + exp(-p.alpha * g)) * (u + p.shift);
  }
  if (kOp == kSigmoidMul) value /= 1.0 + exp(-arena.numbers[b + p.count * column]);
  if (kOp == kAddBias) value += vector_of(0, head * p.columns + column);
  if (kOp == kExpertBias) value += vector_of(0, uint(arena.numbers[p.b_at + row * p.b_row + head]) * p.count + column);
  if (kOp == kScale)
    value *= vector_of(0, p.count == 0 ? 0 : uint(arena.numbers[p.b_at + row * p.b_row + (head * p.columns + column) / p.count]));
  if (kOp == kTemperature) value *= uintBitsToFloat(step_data.words[p.count + row]);
  arena.numbers[p.out_at + row * p.out_row + head * p.out_head + column] = value;
}
