// What all shaders see: one set of buffers, the same for every pipeline. All activations lie in one arena,
// offsets and strides are counted in floats; weights and caches are words, as files hold their bytes.
#ifndef COMMON_GLSL
#define COMMON_GLSL

#extension GL_EXT_control_flow_attributes : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require

layout(set = 0, binding = 0) readonly buffer Tables { uint words[]; } tables;
layout(set = 0, binding = 1) readonly buffer StepData { uint words[]; } step_data;
layout(set = 0, binding = 2) buffer Arena { float numbers[]; } arena;
layout(set = 0, binding = 3) readonly buffer Arena4 { vec4 numbers[]; } arena4;  // the same bytes
layout(set = 0, binding = 4) readonly buffer Weights0 { uint words[]; } weights0;
layout(set = 0, binding = 5) readonly buffer Weights1 { uint words[]; } weights1;
layout(set = 0, binding = 6) readonly buffer Weights2 { vec4 numbers[]; } weights2;  // a vector
layout(set = 0, binding = 7) buffer Cache { uint words[]; } cache;
layout(set = 0, binding = 10) readonly buffer Weights3 { uint words[]; } weights3;
layout(set = 0, binding = 8) readonly buffer Weights0Quads { uvec4 quads[]; } weights0_quads;  // as weights0
layout(set = 0, binding = 9) readonly buffer Weights1Quads { uvec4 quads[]; } weights1_quads;  // as weights1
layout(set = 0, binding = 11) readonly buffer Weights3Quads { uvec4 quads[]; } weights3_quads;  // as weights3

// Sources of weights: 0, 1 and 3 are the buffers of these numbers.

// The first words of the step's data: how many rows it has, and how many outputs; pages of a table's row.
const uint kRowsAt = 0, kOutputsAt = 1, kPagesAt = 2;
const float kInfinity = 3.4e38;  // beyond all numbers that occur: not every device keeps infinities apart

uint word_of(uint source, uint i) {
  return source == 0 ? weights0.words[i] : source == 1 ? weights1.words[i] : weights3.words[i];
}
uvec4 quad_of(uint source, uint i) {
  return source == 0   ? weights0_quads.quads[i]
         : source == 1 ? weights1_quads.quads[i]
                       : weights3_quads.quads[i];
}
float vector_of(uint source, uint i) { return uintBitsToFloat(word_of(source, i)); }

float half_at(uint bits) { return unpackHalf2x16(bits & 0xFFFFu).x; }

// Binary32 to the nearest binary16, halves to even; what is too large becomes infinity.
uint half_of(float value) {
  uint bits = floatBitsToUint(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return sign | 0x7E00u;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;
  if (magnitude < 0x38800000u) {  // subnormal: whole multiples of 2^-24
    float scaled = uintBitsToFloat(magnitude) * 16777216.0;
    return sign | uint(roundEven(scaled));
  }
  uint odd = magnitude >> 13 & 1u;
  return sign | (magnitude - 0x38000000u + 0xFFFu + odd) >> 13;
}

// Four activations from an offset that is a multiple of 4, or of 1.
vec4 four_at(uint at, bool aligned) {
  if (aligned) return arena4.numbers[at >> 2];
  return vec4(arena.numbers[at], arena.numbers[at + 1], arena.numbers[at + 2], arena.numbers[at + 3]);
}

#endif
