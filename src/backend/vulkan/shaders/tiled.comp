#version 450
#extension GL_GOOGLE_include_directive : require
// Many rows times a matrix: tiles of 64 rows and 64 outputs, four units of both in shared memory at a time. An
// invocation has four by four results.
#include "formats.glsl"
#include "product_params.glsl"
layout(local_size_x = 256) in;

const uint kTile = 64, kDepth = 32;
shared vec4 rows_tile[kDepth][kTile / 4 + 1], outputs_tile[kDepth][kTile / 4 + 1];
shared float squares_tile[kTile][4];

void put(uint at, uint lane, vec4 a, vec4 b, bool of_rows) {
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    if (of_rows) {
      rows_tile[8 * at + i][lane >> 2][lane & 3u] = a[i], rows_tile[8 * at + 4 + i][lane >> 2][lane & 3u] = b[i];
    } else {
      outputs_tile[8 * at + i][lane >> 2][lane & 3u] = a[i], outputs_tile[8 * at + 4 + i][lane >> 2][lane & 3u] = b[i];
    }
  }
}

void main() {
  uint rows = step_data.words[p.rows_word], first_row = gl_WorkGroupID.y * kTile, first_output = gl_WorkGroupID.x * kTile;
  uint head = gl_WorkGroupID.z;
  if (first_row >= rows) return;
  uint lane = gl_LocalInvocationID.x >> 2, quarter = gl_LocalInvocationID.x & 3u;
  uint units = (p.columns + 7u) / 8u, row = min(first_row + lane, rows - 1u);
  uint weights = p.first + head * p.matrix + min(first_output + lane, p.outputs - 1u) * p.row;
  uint x = gl_LocalInvocationID.x & 15u, y = gl_LocalInvocationID.x >> 4;
  vec4 sums[4] = vec4[4](vec4(0), vec4(0), vec4(0), vec4(0));
  float squares = 0;
  for (uint first = 0; first < units; first += 4) {
    uint unit = first + quarter;
    vec4 a = vec4(0), b = vec4(0), wa = vec4(0), wb = vec4(0);
    if (unit < units) {
      uvec2 c = columns8(kFormat, unit);
      load_unit(row, head, c, a, b);
      if (kNormed) {
        squares += dot(a, a) + dot(b, b);
        a *= norm_weights(c.x), b *= norm_weights(c.y);
      }
      load_weights(kFormat, 0, weights, unit, c, wa, wb);
    }
    barrier();
    put(quarter, lane, a, b, true);
    put(quarter, lane, wa, wb, false);
    barrier();
    [[unroll]] for (uint k = 0; k < kDepth; ++k) {
      vec4 r = rows_tile[k][y], w = outputs_tile[k][x];
      [[unroll]] for (uint i = 0; i < 4; ++i) sums[i] += r[i] * w;
    }
  }
  if (kNormed) squares_tile[lane][quarter] = squares;
  barrier();
  [[unroll]] for (uint i = 0; i < 4; ++i) {
    uint in_tile = 4 * y + i, to_row = first_row + in_tile;
    if (to_row >= rows) break;
    float factor = 1;
    if (kNormed) {
      float sum = squares_tile[in_tile][0] + squares_tile[in_tile][1] + squares_tile[in_tile][2] + squares_tile[in_tile][3];
      factor = inversesqrt(sum / float(p.columns) + p.epsilon);
    }
    [[unroll]] for (uint j = 0; j < 4; ++j) {
      uint n = first_output + 4 * x + j;
      if (n >= p.outputs) break;
      float sum = factor * sums[i][j];
      if (kAdds) sum += arena.numbers[p.other_at + to_row * p.other_row + n];
      arena.numbers[p.out_at + to_row * p.out_row + head * p.out_head + n] = sum;
    }
  }
}
