#version 450
#extension GL_GOOGLE_include_directive : require
// As tiled.comp, of rows that codes.comp has put into eight bits and weights of formats that have runs, for devices
// that multiply four bytes at a time: tiles of kTile rows and 64 outputs, some runs of 32 columns of both in the
// workgroup's memory at a time, and the next ones under way meanwhile. An invocation has kTile / 16 by four results.
#define DOT4
#include "formats.glsl"
#include "product_params.glsl"
#include "runs.glsl"
const uint kSize = 256;
layout(local_size_x = kSize) in;

layout(constant_id = 10) const bool kGrouped = false;
layout(constant_id = 11) const uint kTile = 64;
const uint kQuads = 1, kSteps = 1;
#include "coded_rows.glsl"

const uint kRuns = kGated ? 2u : 4u, kHalves = 2u * kRuns;  // half a run: 16 columns
// Halves that are added up before their scale: two where 32 columns have one, but for large tiles with a gate, where
// that is slower.
const uint kTogether = kFormat == kQ6_K ? 1u : kGated ? 3u - kTile / 32u : 2u, kScaled = kHalves / kTogether;
const uint kWidth = 64, kMatrices = kGated ? 2u : 1u, kEach = kTile / 16u;
// A half of all rows and outputs after the other, one place more apart than banks of memory are.
const uint kRowsApart = kTile + 1u, kOutputsApart = kWidth + 1u;
shared uvec4 row_codes[kHalves * kRowsApart], output_codes[kMatrices * kHalves * kOutputsApart];
shared vec2 row_steps[kScaled * kRowsApart];
shared vec2 output_scales[kMatrices * kScaled * kOutputsApart];  // and what is added
shared uvec2 row_and_head[kTile];

// What an invocation brings to a tile: a run of an output or of its gate, and halves of rows' runs.
const uint kLoads = (kTile * kHalves + kSize - 1u) / kSize;
uint runs, weights_at, rows_at[kLoads];
Run read;
Sixteen read_rows[kLoads];
uint own_run() { return gl_LocalInvocationID.x % kRuns; }
uint own_output() { return gl_LocalInvocationID.x / kRuns % kWidth; }
bool of_gate() { return kGated && gl_LocalInvocationID.x >= kRuns * kWidth; }
uint own_block(uint run) { return weights_at + block_bytes(kFormat) * (run / runs_of_block(kFormat)); }

// As made_sixteen; the second step is of both halves of 32 columns.
Sixteen row_half(uint row, uint at) {
  if (kTogether == 1u) return made_sixteen(row, p.columns, at);
  vec4 two = arena4.numbers[row + p.columns / 16u + at / 2u];
  return Sixteen(floatBitsToUint(arena4.numbers[row + at]), vec2(two.x, two.y + two.w));
}

void load(uint first) {
  uint run = min(first + own_run(), runs - 1u);
  if (of_gate()) read = read_run(kFormat, 1, own_block(run), run);
  else read = read_run(kFormat, 0, own_block(run), run);
  uint part = gl_LocalInvocationID.x % kHalves;
  run = min(first + part / 2u, runs - 1u);
  uvec2 place = kTogether == 1u ? sixteens(kFormat, run) : 2u * run + uvec2(0, 1);
  [[unroll]] for (uint k = 0; k < kLoads; ++k)
    read_rows[k] = row_half(rows_at[k], part % 2u == 0u ? place.x : place.y);
}

void put(uint first) {
  uint run = min(first + own_run(), runs - 1u);
  uvec4 a, b;
  vec2 scales, added;
  codes_of(kFormat, read, own_block(run), run, a, b);
  scales_of(kFormat, read, own_block(run), run, scales, added);
  if (first + own_run() >= runs) scales = added = vec2(0);
  // Where they are added up, halves stand in the order of columns; of long blocks two runs have the same two scales.
  uvec2 halves = kTogether == 1u ? 2u * own_run() + uvec2(0, 1) : sixteens(kFormat, own_run());
  uint to = (of_gate() ? kHalves * kOutputsApart : 0u) + own_output();
  output_codes[to + halves.x * kOutputsApart] = a, output_codes[to + halves.y * kOutputsApart] = b;
  to = (of_gate() ? kScaled * kOutputsApart : 0u) + own_output();
  if (kTogether == 1u) {
    output_scales[to + 2u * own_run() * kOutputsApart] = vec2(scales.x, added.x);
    output_scales[to + (2u * own_run() + 1u) * kOutputsApart] = vec2(scales.y, added.y);
  } else {
    bool second = runs_of_block(kFormat) > 1u && own_run() % 2u == 1u;
    output_scales[to + own_run() * kOutputsApart] = second ? vec2(scales.y, added.y) : vec2(scales.x, added.x);
  }
  uint part = gl_LocalInvocationID.x % kHalves;
  [[unroll]] for (uint k = 0; k < kLoads; ++k) {
    uint row = (gl_LocalInvocationID.x + k * kSize) / kHalves;
    if (row >= kTile) break;
    row_codes[part * kRowsApart + row] = read_rows[k].codes;
    if (kTogether == 1u) row_steps[part * kRowsApart + row] = read_rows[k].steps;
    else if (part % 2u == 0u) row_steps[part / 2u * kRowsApart + row] = read_rows[k].steps;
  }
}

// Row and output of a tile, columns that have a scale.
float part_product(uint row, uint gate, uint output_, uint part) {
  vec2 steps = row_steps[part * kRowsApart + row];
  vec2 scales = output_scales[(gate * kScaled + part) * kOutputsApart + output_];
  int sum = 0;
  [[unroll]] for (uint k = 0; k < kTogether; ++k) {
    uint half_ = part * kTogether + k;
    sum += whole_dot16(output_codes[(gate * kHalves + half_) * kOutputsApart + output_],
                       row_codes[half_ * kRowsApart + row]);
  }
  return scales.x * steps.x * float(sum) + scales.y * steps.y;
}

void main() {
  uint first_output = gl_WorkGroupID.x * kWidth, head = gl_WorkGroupID.z, i = gl_LocalInvocationID.x;
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
  uint output_row = min(first_output + own_output(), p.outputs - 1u);
  weights_at = of_gate() ? p.gate_first + matrix * p.gate_matrix + output_row * p.gate_row
                         : p.first + matrix * p.matrix + output_row * p.row;
  [[unroll]] for (uint k = 0; k < kLoads; ++k) {
    uvec2 own = row_and_head[(i + k * kSize) / kHalves % kTile];
    rows_at[k] = p.in_at + own.x * p.in_row + own.y * p.in_head;
  }
  // Rows 16 apart: where an expert has few, all invocations are done with 16 at a time.
  uint x = i & 15u, y = i >> 4, count = min(rows - first_row, kTile);
  float sums[kEach * 4u], gate_sums[kEach * 4u];
  [[unroll]] for (uint k = 0; k < kEach * 4u; ++k) sums[k] = gate_sums[k] = 0;
  runs = p.columns / 32u;
  load(0);
  for (uint first = 0; first < runs; first += kRuns) {
    barrier();
    put(first);
    barrier();
    load(first + kRuns);
    for (uint part = 0; part < kScaled; ++part) {
      [[unroll]] for (uint m = 0; m < kEach; ++m) {
        if (kGrouped && m > 0u && 16u * m >= count) break;
        [[unroll]] for (uint j = 0; j < 4u; ++j) {
          sums[m * 4u + j] += part_product(16u * m + y, 0, x + 16u * j, part);
          if (kGated) gate_sums[m * 4u + j] += part_product(16u * m + y, 1, x + 16u * j, part);
        }
      }
    }
  }
  [[unroll]] for (uint m = 0; m < kEach; ++m) {
    uint in_tile = 16u * m + y;
    if (in_tile >= count) break;
    uvec2 to = row_and_head[in_tile];
    [[unroll]] for (uint j = 0; j < 4u; ++j) {
      uint n = first_output + x + 16u * j;
      if (n >= p.outputs) break;
      float sum = sums[m * 4u + j];
      if (kGated) sum = swiglu(gate_sums[m * 4u + j], sum);
      if (kAdds) sum += arena.numbers[p.other_at + to.x * p.other_row + n];
      arena.numbers[p.out_at + to.x * p.out_row + to.y * p.out_head + n] = sum;
    }
  }
}
