#version 450
#extension GL_GOOGLE_include_directive : require
// A workgroup selects the experts of a row (program/ops/route.h).
#include "common.glsl"
#include "subgroups.glsl"
layout(local_size_x = 128) in;

layout(push_constant) uniform Params {
  uint logits_at, logits_row, ids_at, ids_row, weights_at, weights_row;
  uint used, groups, groups_used;
  float scale;
} p;
layout(constant_id = 0) const uint kExperts = 64;
layout(constant_id = 1) const bool kSigmoid = false;
layout(constant_id = 2) const bool kBiased = false;
layout(constant_id = 3) const bool kNormalized = false;

const uint kBiasSource = 0;
uint bias_at() { return 0u; }
#include "scores.glsl"
shared float group_values[kExperts];
shared float best_value[128];
shared uint best_index[128];

// The index of the largest of `count` numbers, the lowest of equal ones; all invocations call it together.
uint largest_of(bool of_groups, uint count) {
  uint i = gl_LocalInvocationID.x, best = count;
  float most = -kInfinity;
  for (uint e = i; e < count; e += gl_WorkGroupSize.x) {
    float value = of_groups ? group_values[e] : selection[e];
    if (value > most) most = value, best = e;
  }
  best_value[i] = most, best_index[i] = best;
  barrier();
  for (uint half_size = gl_WorkGroupSize.x / 2u; half_size > 0u; half_size /= 2u) {
    if (i < half_size) {
      float other = best_value[i + half_size];
      uint index = best_index[i + half_size];
      if (other > best_value[i] || (other == best_value[i] && index < best_index[i]))
        best_value[i] = other, best_index[i] = index;
    }
    barrier();
  }
  uint result = best_index[0];
  barrier();
  return result;
}

// Bars the experts of all but the best groups.
void keep_best_groups() {
  uint i = gl_LocalInvocationID.x, size = kExperts / p.groups;
  for (uint g = i; g < p.groups; g += gl_WorkGroupSize.x) {
    float first = -kInfinity, second = -kInfinity;
    for (uint e = g * size; e < (g + 1u) * size; ++e) {
      float value = selection[e];
      if (value > first) second = first, first = value;
      else second = max(second, value);
    }
    group_values[g] = kSigmoid && size > 1u ? first + second : first;
    chosen[g] = 0u;
  }
  barrier();
  for (uint k = 0; k < p.groups_used; ++k) {
    uint g = largest_of(true, p.groups);
    if (i == 0u && g < p.groups) chosen[g] = 1u, group_values[g] = -kInfinity;
    barrier();
  }
  for (uint e = i; e < kExperts; e += gl_WorkGroupSize.x) {
    if (chosen[e / size] == 0u) selection[e] = -kInfinity;
  }
  barrier();
}

void main() {
  uint row = gl_WorkGroupID.x, i = gl_LocalInvocationID.x;
  if (row >= step_data.words[kRowsAt]) return;
  make_scores(p.logits_at + row * p.logits_row);
  if (p.groups > 1u) keep_best_groups();
  for (uint k = 0; k < p.used; ++k) {
    uint e = min(largest_of(false, kExperts), kExperts - 1u);
    if (i == 0u) chosen[k] = e, selection[e] = -kInfinity;
    barrier();
  }
  float factor = weight_factor(p.used, kNormalized, p.scale);
  for (uint k = i; k < p.used; k += gl_WorkGroupSize.x) {
    arena.numbers[p.ids_at + row * p.ids_row + k] = float(chosen[k]);
    arena.numbers[p.weights_at + row * p.weights_row + k] = values[chosen[k]] * factor;
  }
}
