#version 450
#extension GL_GOOGLE_include_directive : require
// A workgroup makes a row of the latent cache.
#include "common.glsl"
layout(local_size_x = 128) in;  // before what counts by it
#include "subgroups.glsl"
#include "latent_row.glsl"

layout(push_constant) uniform Params {
  uint kv_at, kv_row, angles_at, slots_at;
  float epsilon;
} p;

void main() {
  uint row = gl_WorkGroupID.y;
  if (row >= step_data.words[kRowsAt]) return;
  append_latent(row, p.kv_at + row * p.kv_row, p.angles_at, p.slots_at, p.epsilon);
}
