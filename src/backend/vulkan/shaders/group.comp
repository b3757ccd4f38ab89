#version 450
#extension GL_GOOGLE_include_directive : require
// A step's rows by the experts that they go to: one workgroup writes the list of all (row, choice) in the order
// of experts, and the tiles of at most kTile of them that tiled.comp works on. Which of an expert's rows comes
// first is left open; no result depends on it.
#include "common.glsl"
layout(local_size_x = 256) in;

layout(push_constant) uniform Params {
  uint ids_at, ids_row, used;
  uint list_at;   // row * used + choice
  uint tiles_at;  // how many; then from the fifth on expert, first, end, 0
} p;
layout(constant_id = 0) const uint kExperts = 64;
layout(constant_id = 1) const uint kTile = 64;
shared uint counts[kExperts], first_of[kExperts], first_tile[kExperts];

void main() {
  uint i = gl_LocalInvocationID.x, entries = step_data.words[kRowsAt] * p.used;
  for (uint e = i; e < kExperts; e += gl_WorkGroupSize.x) counts[e] = 0;
  barrier();
  for (uint n = i; n < entries; n += gl_WorkGroupSize.x)
    atomicAdd(counts[min(uint(arena.numbers[p.ids_at + n / p.used * p.ids_row + n % p.used]), kExperts - 1u)], 1u);
  barrier();
  if (i == 0u) {
    uint place = 0, tile = 0;
    for (uint e = 0; e < kExperts; ++e) {
      first_of[e] = place, first_tile[e] = tile;
      place += counts[e], tile += (counts[e] + kTile - 1u) / kTile;
    }
    arena.numbers[p.tiles_at] = float(tile);
  }
  barrier();
  for (uint e = i; e < kExperts; e += gl_WorkGroupSize.x) {
    uint end = first_of[e] + counts[e];
    for (uint t = 0; t * kTile < counts[e]; ++t) {
      uint at = p.tiles_at + 4u * (first_tile[e] + t) + 4u;
      arena.numbers[at] = float(e), arena.numbers[at + 1u] = float(first_of[e] + t * kTile);
      arena.numbers[at + 2u] = float(min(end, first_of[e] + (t + 1u) * kTile));
    }
    counts[e] = 0;
  }
  barrier();
  for (uint n = i; n < entries; n += gl_WorkGroupSize.x) {
    uint e = min(uint(arena.numbers[p.ids_at + n / p.used * p.ids_row + n % p.used]), kExperts - 1u);
    arena.numbers[p.list_at + first_of[e] + atomicAdd(counts[e], 1u)] = float(n);
  }
}
