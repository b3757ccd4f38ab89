#version 450
#extension GL_GOOGLE_include_directive : require
// Many rows times a matrix: tiles of 64 rows and 64 outputs, four units of both in shared memory at a time. An
// invocation has four by four results. Rows are those of the step, or (kGrouped) those that group.comp listed
// for an expert.
#include "formats.glsl"
#include "product_params.glsl"
layout(local_size_x = 256) in;

layout(constant_id = 10) const bool kGrouped = false;

const uint kTile = 64, kDepth = 32;
const uint kGateDepth = kGated ? kDepth : 1u;
shared vec4 rows_tile[kDepth][kTile / 4 + 1], outputs_tile[kDepth][kTile / 4 + 1], gates_tile[kGateDepth][kTile / 4 + 1];
shared float squares_tile[kTile][4];
shared uvec2 row_and_head[kTile];

#define PUT(tile, at, lane, a, b)                       \
  [[unroll]] for (uint i = 0; i < 4; ++i)               \
    tile[8 * (at) + i][(lane) >> 2][(lane) & 3u] = a[i], \
    tile[8 * (at) + 4 + i][(lane) >> 2][(lane) & 3u] = b[i]

void main() {
  uint first_output = gl_WorkGroupID.x * kTile, head = gl_WorkGroupID.z, i = gl_LocalInvocationID.x;
  uint first_row = gl_WorkGroupID.y * kTile, rows = step_data.words[p.rows_word], matrix = head;
  if (kGrouped) {
    if (!has_tile(gl_WorkGroupID.y)) return;
    ExpertTile tile = expert_tile(gl_WorkGroupID.y);
    matrix = tile.expert, first_row = tile.first, rows = tile.end;
  }
  if (first_row >= rows) return;
  if (i < kTile) {
    uint row = min(first_row + i, rows - 1u);
    row_and_head[i] = kGrouped ? row_and_choice(row) : uvec2(row, head);
  }
  barrier();
  uint lane = i >> 2, quarter = i & 3u, units = (p.columns + 7u) / 8u;
  uvec2 own = row_and_head[lane];
  uint output_row = min(first_output + lane, p.outputs - 1u);
  uint weights = p.first + matrix * p.matrix + output_row * p.row;
  uint gates = p.gate_first + matrix * p.gate_matrix + output_row * p.gate_row;
  uint x = i & 15u, y = i >> 4;
  vec4 sums[4] = vec4[4](vec4(0), vec4(0), vec4(0), vec4(0)), gate_sums[4] = sums;
  float squares = 0;
  for (uint first = 0; first < units; first += 4) {
    uint unit = first + quarter;
    vec4 a = vec4(0), b = vec4(0), wa = vec4(0), wb = vec4(0), ga = vec4(0), gb = vec4(0);
    if (unit < units) {
      uvec2 c = columns8(kFormat, unit);
      a = four_of_row(own.x, own.y, c.x), b = four_of_row(own.x, own.y, c.y);
      if (kNormed) {
        squares += dot(a, a) + dot(b, b);
        a *= norm_weights(c.x), b *= norm_weights(c.y);
      }
      load_weights(kFormat, 0, weights, unit, c, wa, wb);
      if (kGated) load_weights(kGateFormat, 1, gates, unit, c, ga, gb);
    }
    barrier();
    PUT(rows_tile, quarter, lane, a, b);
    PUT(outputs_tile, quarter, lane, wa, wb);
    if (kGated) PUT(gates_tile, quarter, lane, ga, gb);
    barrier();
    [[unroll]] for (uint k = 0; k < kDepth; ++k) {
      vec4 r = rows_tile[k][y], w = outputs_tile[k][x];
      [[unroll]] for (uint n = 0; n < 4; ++n) sums[n] += r[n] * w;
      if (kGated) {
        vec4 g = gates_tile[k][x];
        [[unroll]] for (uint n = 0; n < 4; ++n) gate_sums[n] += r[n] * g;
      }
    }
  }
  if (kNormed) squares_tile[lane][quarter] = squares;
  barrier();
  [[unroll]] for (uint m = 0; m < 4; ++m) {
    uint in_tile = 4 * y + m;
    if (first_row + in_tile >= rows) break;
    uvec2 to = row_and_head[in_tile];
    float factor = 1;
    if (kNormed) {
      float sum = squares_tile[in_tile][0] + squares_tile[in_tile][1] + squares_tile[in_tile][2] + squares_tile[in_tile][3];
      factor = inversesqrt(sum / float(p.columns) + p.epsilon);
    }
    [[unroll]] for (uint j = 0; j < 4; ++j) {
      uint n = first_output + 4 * x + j;
      if (n >= p.outputs) break;
      float sum = factor * sums[m][j];
      if (kGated) sum = swiglu(factor * gate_sums[m][j], sum);
      if (kAdds) sum += arena.numbers[p.other_at + to.x * p.other_row + n];
      arena.numbers[p.out_at + to.x * p.out_row + to.y * p.out_head + n] = sum;
    }
  }
}
