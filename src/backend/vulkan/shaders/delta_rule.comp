#version 450
#extension GL_GOOGLE_include_directive : require
// The gated delta rule (program/ops/delta_rule.h): a workgroup has columns of one head's matrix for all rows of
// a sequence, an invocation one column of it.
#include "common.glsl"
#include "subgroups.glsl"
layout(local_size_x = 64) in;

layout(push_constant) uniform Params {
  uint q_at, q_row, q_head, k_at, k_row, k_head, v_at, v_row, v_head;
  uint decay_at, decay_row, decay_head, decay_columns;
  uint beta_at, beta_row, beta_head, beta_columns;
  uint out_at, out_row, out_head;
  uint values, key_heads, heads, layer, layers;
  uint positions_at, sequences_at, states_at;
} p;
layout(constant_id = 0) const uint kKeys = 128;
layout(constant_id = 1) const bool kInTurns = false;
layout(constant_id = 2) const bool kByChannel = false;

shared float queries[kKeys], keys[kKeys], decays[kKeys];

float softplus(float x) { return max(x, 0.0) + log(1.0 + exp(-abs(x))); }

// What a row brings for the head: its query and key over their lengths, and its decays.
void load_row(uint row, uint head, uint key_head) {
  uint i = gl_LocalInvocationID.x;
  float q_squares = 0, k_squares = 0;
  for (uint c = i; c < kKeys; c += gl_WorkGroupSize.x) {
    float q = arena.numbers[p.q_at + row * p.q_row + key_head * p.q_head + c];
    float k = arena.numbers[p.k_at + row * p.k_row + key_head * p.k_head + c];
    queries[c] = q, keys[c] = k;
    q_squares += q * q, k_squares += k * k;
  }
  float q_length = sqrt(workgroup_sum(q_squares) + 1e-6) * sqrt(float(kKeys));
  float k_length = sqrt(workgroup_sum(k_squares) + 1e-6);
  float rate = min(vector_of(0, head), 0.0);
  for (uint c = i; c < kKeys; c += gl_WorkGroupSize.x) {
    uint at = kByChannel ? head * kKeys + c : head;
    float x = arena.numbers[p.decay_at + row * p.decay_row + at / p.decay_columns * p.decay_head + at % p.decay_columns];
    queries[c] /= q_length, keys[c] /= k_length;
    decays[c] = exp(rate * softplus(x + vector_of(1, at)));
  }
  barrier();
}

void main() {
  uint first = gl_WorkGroupID.y, head = gl_WorkGroupID.z, rows = step_data.words[kRowsAt];
  uint c = gl_GlobalInvocationID.x;
  if (first >= rows) return;
  uint sequence = step_data.words[p.sequences_at + first];
  if (first > 0u && step_data.words[p.sequences_at + first - 1u] == sequence) return;
  uint key_head = kInTurns ? head % p.key_heads : head / (p.heads / p.key_heads);
  uint each = p.heads * kKeys * p.values, place = head * kKeys * p.values + c;
  uint from = (step_data.words[p.states_at + 2u * first] * p.layers + p.layer) * each + place;
  uint to = (step_data.words[p.states_at + 2u * first + 1u] * p.layers + p.layer) * each + place;
  bool begins = step_data.words[p.positions_at + first] == 0u, has_column = c < p.values;
  float column[kKeys];
  for (uint i = 0; i < kKeys; ++i)
    column[i] = begins || !has_column ? 0.0 : uintBitsToFloat(cache.words[from + i * p.values]);
  for (uint r = first; r < rows && step_data.words[p.sequences_at + r] == sequence; ++r) {
    load_row(r, head, key_head);
    float known = 0, sum = 0;
    for (uint i = 0; i < kKeys; ++i) {
      column[i] *= decays[i];
      known += keys[i] * column[i];
    }
    float beta = arena.numbers[p.beta_at + r * p.beta_row + head / p.beta_columns * p.beta_head + head % p.beta_columns];
    float v = has_column ? arena.numbers[p.v_at + r * p.v_row + head * p.v_head + c] : 0.0;
    float change = (v - known) / (1.0 + exp(-beta));
    for (uint i = 0; i < kKeys; ++i) {
      column[i] += keys[i] * change;
      sum += queries[i] * column[i];
    }
    if (has_column) arena.numbers[p.out_at + r * p.out_row + head * p.out_head + c] = sum;
    barrier();
  }
  for (uint i = 0; i < kKeys && has_column; ++i) cache.words[to + i * p.values] = floatBitsToUint(column[i]);
}
