#version 450
#extension GL_GOOGLE_include_directive : require
// Reads a buffer, four pieces of 16 bytes under way an invocation: what memory gives at best.
#include "common.glsl"
layout(local_size_x = 256) in;

layout(push_constant) uniform Params {
  uint count;  // of pieces
} p;

void main() {
  uint stride = gl_NumWorkGroups.x * gl_WorkGroupSize.x;
  vec4 sum = vec4(0);
  for (uint i = gl_GlobalInvocationID.x; i < p.count; i += 4u * stride) {
    [[unroll]] for (uint k = 0; k < 4; ++k) sum += weights2.numbers[min(i + k * stride, p.count - 1u)];
  }
  if (sum.x + sum.y + sum.z + sum.w == 1.5) arena.numbers[0] = sum.x;  // never: the buffer is zeros
}
