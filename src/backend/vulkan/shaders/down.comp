#version 450
#extension GL_GOOGLE_include_directive : require
// What a row's experts give, weighted and added up, with the shared expert and what came before: a workgroup has
// some outputs of all of them.
#include "formats.glsl"
layout(local_size_x = 128) in;

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head;
  uint out_at, out_row;
  uint other_at, other_row;      // what is added
  uint ids_at, ids_row, weights_at, weights_row;
  uint first, matrix, row;       // bytes, of the experts' weights
  uint shared_at, shared_row;    // the shared expert's rows
  uint shared_first, shared_bytes;
  uint outputs, used;
} p;

layout(constant_id = 0) const uint kFormat = 2;
layout(constant_id = 1) const uint kSharedFormat = 2;
layout(constant_id = 2) const bool kShared = false;
layout(constant_id = 3) const uint kOutputs = 2;
layout(constant_id = 4) const uint kAhead = 1;        // units that an invocation has under way
layout(constant_id = 5) const bool kAdds = false;
layout(constant_id = 6) const uint kUnits = 1;        // of an expert's row
layout(constant_id = 7) const uint kSharedUnits = 1;  // of the shared expert's
layout(constant_id = 8) const uint kSharedAhead = 1;

float sums[kOutputs];
shared float parts[kOutputs * 128];

uint shared_row(uint output_row) { return p.shared_first + min(output_row, p.outputs - 1u) * p.shared_bytes; }

float multiplied(uint format, uint source, Raw raw, uint row, uint unit, vec4 xa, vec4 xb) {
  vec4 a, b;
  if (is_read_raw(format)) decode_raw(format, raw, row, unit, a, b);
  else decode8(format, source, row, unit, a, b);
  return dot(a, xa) + dot(b, xb);
}

// Units of all experts one after the other, so that no expert waits for another.
void add_experts(uint row, uint first_output) {
  uint count = p.used * kUnits, ids = p.ids_at + row * p.ids_row, factors = p.weights_at + row * p.weights_row;
  for (uint first = gl_LocalInvocationID.x; first < count; first += kAhead * gl_WorkGroupSize.x) {
    Raw raws[kAhead * kOutputs];
    uint weights[kAhead];
    [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) {
      uint item = min(first + ahead * gl_WorkGroupSize.x, count - 1u), k = item / kUnits;
      weights[ahead] = p.first + uint(arena.numbers[ids + k]) * p.matrix;
      [[unroll]] for (uint i = 0; i < kOutputs; ++i)
        raws[ahead * kOutputs + i] =
            read_raw(kFormat, 0, weights[ahead] + min(first_output + i, p.outputs - 1u) * p.row, item % kUnits);
    }
    [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) {
      uint item = first + ahead * gl_WorkGroupSize.x;
      bool is_there = item < count;
      item = min(item, count - 1u);
      uint k = item / kUnits, unit = item % kUnits, from = p.in_at + row * p.in_row + k * p.in_head;
      float factor = is_there ? arena.numbers[factors + k] : 0.0;
      uvec2 c = columns8(kFormat, unit);
      vec4 xa = four_at(from + c.x, true), xb = four_at(from + c.y, true);
      [[unroll]] for (uint i = 0; i < kOutputs; ++i)
        sums[i] += factor * multiplied(kFormat, 0, raws[ahead * kOutputs + i],
                                       weights[ahead] + min(first_output + i, p.outputs - 1u) * p.row, unit, xa, xb);
    }
  }
}

void add_shared(uint row, uint first_output) {
  uint from = p.shared_at + row * p.shared_row;
  for (uint first = gl_LocalInvocationID.x; first < kSharedUnits; first += kSharedAhead * gl_WorkGroupSize.x) {
    Raw raws[kSharedAhead * kOutputs];
    [[unroll]] for (uint k = 0; k < kSharedAhead * kOutputs; ++k)
      raws[k] = read_raw(kSharedFormat, 1, shared_row(first_output + k % kOutputs),
                         min(first + k / kOutputs * gl_WorkGroupSize.x, kSharedUnits - 1u));
    [[unroll]] for (uint ahead = 0; ahead < kSharedAhead; ++ahead) {
      uint unit = first + ahead * gl_WorkGroupSize.x;
      bool is_there = unit < kSharedUnits;
      unit = min(unit, kSharedUnits - 1u);
      uvec2 c = columns8(kSharedFormat, unit);
      vec4 xa = four_at(from + c.x, true), xb = four_at(from + c.y, true);
      [[unroll]] for (uint i = 0; i < kOutputs; ++i) {
        float sum = multiplied(kSharedFormat, 1, raws[ahead * kOutputs + i], shared_row(first_output + i), unit, xa, xb);
        sums[i] += is_there ? sum : 0.0;
      }
    }
  }
}

void main() {
  uint row = gl_WorkGroupID.y, i = gl_LocalInvocationID.x, first_output = gl_WorkGroupID.x * kOutputs;
  if (row >= step_data.words[kRowsAt]) return;
  [[unroll]] for (uint n = 0; n < kOutputs; ++n) sums[n] = 0;
  add_experts(row, first_output);
  if (kShared) add_shared(row, first_output);
  [[unroll]] for (uint n = 0; n < kOutputs; ++n) {
    float sum = subgroupAdd(sums[n]);
    if (subgroupElect()) parts[n * 128u + gl_SubgroupID] = sum;
  }
  barrier();
  uint n = first_output + i;
  if (i >= kOutputs || n >= p.outputs) return;
  float sum = kAdds ? arena.numbers[p.other_at + row * p.other_row + n] : 0.0;
  for (uint g = 0; g < gl_NumSubgroups; ++g) sum += parts[i * 128u + g];
  arena.numbers[p.out_at + row * p.out_row + n] = sum;
}
