#version 450
#extension GL_GOOGLE_include_directive : require
// Few rows times a matrix: those of a step, or those of an expert. An invocation has some rows of the weight at a
// time, kLanes of them share these, and take turns at their runs of 32 columns with kAhead of them under way. Rows of
// activations stand in the workgroup's memory in eight bits (runs.glsl); what is read of weights first is under way
// meanwhile. Rows of formats without runs are multiplied as floats. Normalising costs nothing here: the sum of squares
// comes along.
//
// What stands beside a product or before it is done here, too, where it would otherwise be a dispatch of its
// own; at most one of these:
// - kSide: a second product of the same rows, without a gate, by the workgroups from a number on;
// - kExperts: every workgroup chooses the row's experts from the router's logits, and one writes them down;
// - kMerged: the rows are what stretches of a context gave (attend.comp), put together on the way in;
// - kAppends: the last of z makes the rows of the latent cache.
#include "formats.glsl"
const uint kSize = 256;
layout(local_size_x = kSize) in;
#include "subgroups.glsl"
#include "product_params.glsl"
#include "runs.glsl"

layout(constant_id = 10) const uint kAhead = 1;    // runs, or units, that an invocation has under way
layout(constant_id = 11) const uint kLanes = 32;   // invocations that share a row of the weight
layout(constant_id = 12) const bool kSide = false;
layout(constant_id = 13) const uint kSideFormat = 0;
layout(constant_id = 14) const uint kMerged = 0;  // stretches
layout(constant_id = 15) const uint kExperts = 0;
layout(constant_id = 16) const bool kSigmoid = false;
layout(constant_id = 17) const bool kBiased = false;
layout(constant_id = 18) const bool kNormalized = false;
layout(constant_id = 19) const bool kAppends = false;
// Of rows in the workgroup's memory: 16 codes or four floats each, and steps of the codes.
layout(constant_id = 28) const uint kQuads = 128;
layout(constant_id = 29) const uint kSteps = 128;
layout(constant_id = 30) const bool kMade = false;  // codes.comp made the rows' codes; they are read where they lie
layout(constant_id = 31) const bool kGrouped = false;  // rows are an expert's, as group.comp has sorted them
const uint kBiasSource = 3;
uint bias_at() { return p.more[5]; }
#include "coded_rows.glsl"
#include "scores.glsl"
#include "latent_row.glsl"

const uint kSlots = kSize + kSize / 32u;  // of which no 32 lanes apart share a bank
shared float parts[kOutputs * (kGated ? 2u : 1u) * kSlots];

const uint kMergedFours = kMerged == 0u ? 1u : kSteps > 1u ? kSteps * 4u : kQuads;
shared vec4 merged[kMergedFours];

shared uvec2 grouped[kGrouped ? kRows : 1u];
// The workgroup's rth row, and which head of it.
uvec2 row_and_head(uint r, uint first_row, uint rows, uint head) {
  if (kGrouped) return grouped[r];
  return uvec2(min(first_row + r, rows - 1u), head);
}

// What there is of a row in codes, those that are staged or those made before.
Sixteen sixteen_of(uint r, uint first_row, uint rows, uint head, uint each, uint at) {
  if (!kMade) return staged_sixteen(r * each + at);
  uvec2 own = row_and_head(r, first_row, rows, head);
  return made_sixteen(p.in_at + own.x * p.in_row + own.y * p.in_head, p.columns, at);
}

// What the workgroup's rows have of a head. more: where the partial results of stretches begin.
void merge(uint first_row, uint rows, uint head) {
  uint fours = p.columns / 4u, each = fours + 1u;
  for (uint item = gl_LocalInvocationID.x; item < kRows * fours; item += kSize) {
    uint row = min(first_row + item / fours, rows - 1u);
    uint at = (p.more[0] >> 2) + (row * gl_NumWorkGroups.z + head) * kMerged * each;
    vec4 parts[kMerged + 1u];
    vec2 heads[kMerged + 1u];  // the largest score, and the sum of weights
    float largest = -kInfinity, total = 0;
    [[unroll]] for (uint s = 0; s < kMerged; ++s) {
      heads[s] = arena4.numbers[at + s * each].xy;
      parts[s] = arena4.numbers[at + s * each + 1u + item % fours];
    }
    [[unroll]] for (uint s = 0; s < kMerged; ++s) largest = max(largest, heads[s].x);
    vec4 sum = vec4(0);
    [[unroll]] for (uint s = 0; s < kMerged; ++s) {
      float weight = exp(heads[s].x - largest);
      total += weight * heads[s].y, sum += weight * parts[s];
    }
    merged[item] = sum / total;
  }
  barrier();
}

// Four columns of one of the workgroup's rows.
vec4 four_of(uint row, uint first_row, uint head, uint c) {
  return kMerged > 0u ? merged[(row - first_row) * (p.columns / 4u) + c / 4u] : four_of_row(row, head, c);
}
vec4 normed_four(uint row, uint first_row, uint head, uint c) {
  vec4 x = four_of(row, first_row, head, c);
  return kNormed ? x * norm_weights(c) : x;
}

// Rows' columns from one on, `count` of them, become codes; and what their squares add up to, of this invocation's.
void stage_codes(uint first_row, uint rows, uint head, uint begin, uint count, inout float squares[kRows]) {
  uint each = count / 16u, all = kRows * each;
  if (kMerged > 0u) merge(first_row, rows, head);
  for (uint item = gl_LocalInvocationID.x; item < all; item += kSize) {
    uint r = item / each, column = begin + item % each * 16u;
    uvec2 own = row_and_head(r, first_row, rows, head);
    vec4 x[4];
    float most = 0;
    [[unroll]] for (uint k = 0; k < 4u; ++k) {
      x[k] = four_of(own.x, first_row, own.y, column + 4u * k);
      if (kNormed) {
        [[unroll]] for (uint n = 0; n < kRows; ++n) squares[n] += n == r ? dot(x[k], x[k]) : 0.0;
        x[k] *= norm_weights(column + 4u * k);
      }
      most = max(most, largest_of(x[k]));
      most = max(most, largest_of(normed_four(own.x, first_row, own.y, (column ^ 16u) + 4u * k)));
    }
    put_codes(item, x, most, 1.0);
  }
}

// The same as floats.
void stage_floats(uint first_row, uint rows, uint head, uint begin, uint count, inout float squares[kRows]) {
  uint each = count / 4u;
  if (kMerged > 0u) merge(first_row, rows, head);
  [[unroll]] for (uint r = 0; r < kRows; ++r) {
    uvec2 own = row_and_head(r, first_row, rows, head);
    for (uint c = gl_LocalInvocationID.x; c < each; c += kSize) {
      vec4 x = four_of(own.x, first_row, own.y, begin + 4u * c);
      if (kNormed) squares[r] += dot(x, x), x *= norm_weights(begin + 4u * c);
      staged[r * each + c] = floatBitsToUint(x);
    }
  }
}

// The row's experts: those than which fewer are better, which several invocations count for each. more: where
// logits are (and from row to row), where weights go (likewise), what they are scaled by, and where biases are.
const uint kCounting = kExperts == 0u || kExperts > kSize ? 1u : kSize / kExperts;
shared uint better_ones[kExperts + 1u];
void choose(uint row, bool writes) {
  uint used = gl_NumWorkGroups.z, i = gl_LocalInvocationID.x, each = (kExperts + kCounting - 1u) / kCounting;
  for (uint e = i; e < kExperts; e += kSize) better_ones[e] = 0;
  make_scores(p.more[0] + row * p.more[1]);
  for (uint item = i; item < kCounting * kExperts; item += kSize) {
    uint e = item % kExperts, begin = item / kExperts * each, better = 0;
    float own = selection[e];
    for (uint f = begin; f < min(begin + each, kExperts); ++f)
      better += selection[f] > own || (selection[f] == own && f < e) ? 1u : 0u;
    if (better > 0u) atomicAdd(better_ones[e], better);
  }
  barrier();
  for (uint e = i; e < kExperts; e += kSize) {
    if (better_ones[e] < used) chosen[better_ones[e]] = e;
  }
  barrier();
  if (!writes) return;
  float factor = weight_factor(used, kNormalized, uintBitsToFloat(p.more[4]));
  for (uint k = i; k < used; k += gl_WorkGroupSize.x) {
    arena.numbers[p.ids_at + row * p.ids_row + k] = float(chosen[k]);
    arena.numbers[p.more[2] + row * p.more[3] + k] = values[chosen[k]] * factor;
  }
}

// more: where latents are (and from row to row), angles, slots.
void append_rows(uint first_row, uint rows) {
  for (uint row = first_row; row < min(first_row + kRows, rows); ++row)
    append_latent(row, p.more[0] + row * p.more[1], p.more[2], p.more[3], p.epsilon);
}

// A matrix, or the same rows of it and of its gate.
struct Matrix {
  uint first, row;  // bytes
  uint outputs;
  uint out_at, out_row, out_head;
};
const uint kSums = kRows * kOutputs;  // output by output

// Whether an expert has fewer rows: its workgroups leave the others out.
bool is_beyond(uint r, uint first_row, uint rows) { return kGrouped && r > 0u && first_row + r >= rows; }

uint block_at(uint format, uint row, uint run) { return row + block_bytes(format) * (run / runs_of_block(format)); }

// A run of some rows of a matrix, taken apart.
struct Decoded {
  uvec4 a, b;
  vec2 scales, added;
};
Decoded decoded(uint format, Run read, uint at, uint run, bool is_there) {
  Decoded d;
  codes_of(format, read, at, run, d.a, d.b);
  scales_of(format, read, at, run, d.scales, d.added);
  if (!is_there) d.scales = d.added = vec2(0);
  return d;
}

// Of the columns from one on, `count` of them.
void multiply_runs(uint format, uint source, bool gated, Matrix m, uint gates, uint first_row, uint rows, uint head,
                   uint n, uint begin, uint count, inout float sums[kSums], inout float gate_sums[kSums],
                   inout float squares[kRows]) {
  uint lane = gl_LocalInvocationID.x % kLanes, first_run = begin / 32u, end = (begin + count) / 32u, each = count / 16u;
  for (uint first = first_run; first < end; first += kAhead * kLanes) {
    Run reads[kAhead * kOutputs], gate_reads[kAhead * kOutputs];
    [[unroll]] for (uint k = 0; k < kAhead * kOutputs; ++k) {
      uint run = min(first + lane + k / kOutputs * kLanes, end - 1u), output_row = min(n + k % kOutputs, m.outputs - 1u);
      reads[k] = read_run(format, source, block_at(format, m.first + output_row * m.row, run), run);
      if (gated)
        gate_reads[k] = read_run(kGateFormat, 1, block_at(kGateFormat, gates + output_row * p.gate_row, run), run);
    }
    if (!kMade && first == first_run) {
      if (begin > 0u) barrier();
      stage_codes(first_row, rows, head, begin, count, squares);
      barrier();
    }
    [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) {
      bool is_there = first + lane + ahead * kLanes < end;
      uint run = min(first + lane + ahead * kLanes, end - 1u);
      Decoded weights[kOutputs], gate_weights[kOutputs];
      [[unroll]] for (uint i = 0; i < kOutputs; ++i) {
        uint output_row = min(n + i, m.outputs - 1u), k = ahead * kOutputs + i;
        weights[i] = decoded(format, reads[k], block_at(format, m.first + output_row * m.row, run), run, is_there);
        if (gated)
          gate_weights[i] = decoded(kGateFormat, gate_reads[k],
                                    block_at(kGateFormat, gates + output_row * p.gate_row, run), run, is_there);
      }
      // What is read of activations serves all outputs.
      uvec2 place = sixteens(format, run) - begin / 16u, gate_place = sixteens(kGateFormat, run) - begin / 16u;
      [[unroll]] for (uint r = 0; r < kRows; ++r) {
        if (is_beyond(r, first_row, rows)) break;
        Sixteen of_a = sixteen_of(r, first_row, rows, head, each, place.x);
        Sixteen of_b = sixteen_of(r, first_row, rows, head, each, place.y);
        Sixteen gate_a = of_a, gate_b = of_b;
        if (gated) {
          gate_a = sixteen_of(r, first_row, rows, head, each, gate_place.x);
          gate_b = sixteen_of(r, first_row, rows, head, each, gate_place.y);
        }
        [[unroll]] for (uint i = 0; i < kOutputs; ++i) {
          Decoded w = weights[i];
          sums[i * kRows + r] += coded_product(w.a, w.b, w.scales, w.added, of_a, of_b);
          if (!gated) continue;
          w = gate_weights[i];
          gate_sums[i * kRows + r] += coded_product(w.a, w.b, w.scales, w.added, gate_a, gate_b);
        }
      }
    }
  }
}

// The same of formats without runs.
const uint kUnits = kOutputs < 8u ? 8u / kOutputs : 1u;  // under way
float unit_product(vec4 a, vec4 b, uint from, uvec2 place) {
  return dot(a, uintBitsToFloat(staged[from + place.x])) + dot(b, uintBitsToFloat(staged[from + place.y]));
}

void multiply_units(uint format, uint source, bool gated, Matrix m, uint gates, uint first_row, uint rows, uint head,
                    uint n, uint begin, uint count, inout float sums[kSums], inout float gate_sums[kSums],
                    inout float squares[kRows]) {
  uint lane = gl_LocalInvocationID.x % kLanes, end = (begin + count) / 8u, each = count / 4u;
  for (uint first = begin / 8u; first < end; first += kUnits * kLanes) {
    vec4 a[kUnits * kOutputs], b[kUnits * kOutputs], gate_a[kUnits * kOutputs], gate_b[kUnits * kOutputs];
    [[unroll]] for (uint k = 0; k < kUnits * kOutputs; ++k) {
      uint unit = min(first + lane + k / kOutputs * kLanes, end - 1u), output_row = min(n + k % kOutputs, m.outputs - 1u);
      uvec2 c = columns8(format, unit);
      load_weights(format, source, m.first + output_row * m.row, unit, c, a[k], b[k]);
      if (gated) load_weights(kGateFormat, 1, gates + output_row * p.gate_row, unit, c, gate_a[k], gate_b[k]);
    }
    if (first == begin / 8u) {
      if (begin > 0u) barrier();
      stage_floats(first_row, rows, head, begin, count, squares);
      barrier();
    }
    [[unroll]] for (uint k = 0; k < kUnits * kOutputs; ++k) {
      bool is_there = first + lane + k / kOutputs * kLanes < end;
      uvec2 place = (columns8(format, min(first + lane + k / kOutputs * kLanes, end - 1u)) - begin) >> 2;
      [[unroll]] for (uint r = 0; r < kRows; ++r) {
        if (is_beyond(r, first_row, rows)) break;
        float sum = unit_product(a[k], b[k], r * each, place);
        sums[k % kOutputs * kRows + r] += is_there ? sum : 0.0;
        if (!gated) continue;
        sum = unit_product(gate_a[k], gate_b[k], r * each, place);
        gate_sums[k % kOutputs * kRows + r] += is_there ? sum : 0.0;
      }
    }
  }
}

// What each row of the workgroup is multiplied by where it is normalised.
float norm_factor(float squares) { return kNormed ? inversesqrt(workgroup_sum(squares) / float(p.columns) + p.epsilon) : 1.0; }

// Workgroup `group` multiplies its share.
void multiply(uint format, uint source, bool gated, bool adds, Matrix m, uint gates, uint first_row, uint rows,
              uint head, uint group) {
  bool runs = is_of_runs(format) && (!gated || is_of_runs(kGateFormat));
  // Columns that there is room for: a block's are not parted.
  uint columns = (p.columns + 7u) & ~7u, room = (runs ? kSteps * 16u : kQuads * 4u) / kRows;
  uint step = room < columns && !kMade ? room & ~255u : columns;
  uint i = gl_LocalInvocationID.x, n = (group * (kSize / kLanes) + i / kLanes) * kOutputs;
  float sums[kSums], gate_sums[kSums], squares[kRows];
  [[unroll]] for (uint k = 0; k < kSums; ++k) sums[k] = gate_sums[k] = 0;
  [[unroll]] for (uint r = 0; r < kRows; ++r) squares[r] = 0;
  for (uint begin = 0; begin < columns; begin += step) {
    uint count = min(step, columns - begin);
    if (runs)
      multiply_runs(format, source, gated, m, gates, first_row, rows, head, n, begin, count, sums, gate_sums, squares);
    else
      multiply_units(format, source, gated, m, gates, first_row, rows, head, n, begin, count, sums, gate_sums, squares);
  }
  // Lanes' sums become one.
  uint slot = i / kOutputs, output_ = group * (kSize / kLanes) * kOutputs + i;
  [[unroll]] for (uint r = 0; r < kRows; ++r) {
    if (is_beyond(r, first_row, rows)) break;
    float factor = norm_factor(squares[r]);
    if (r > 0u) barrier();
    [[unroll]] for (uint k = 0; k < kOutputs; ++k) {
      parts[k * kSlots + i + i / 32u] = sums[k * kRows + r];
      if (gated) parts[(kOutputs + k) * kSlots + i + i / 32u] = gate_sums[k * kRows + r];
    }
    barrier();
    if (i < kSize / kLanes * kOutputs && output_ < m.outputs && first_row + r < rows) {
      float sum = 0, gate = 0;
      for (uint l = slot * kLanes; l < (slot + 1u) * kLanes; ++l) {
        sum += parts[i % kOutputs * kSlots + l + l / 32u];
        if (gated) gate += parts[(kOutputs + i % kOutputs) * kSlots + l + l / 32u];
      }
      sum *= factor;
      uvec2 own = row_and_head(r, first_row, rows, head);
      if (adds) sum += arena.numbers[p.other_at + own.x * p.other_row + output_];
      arena.numbers[m.out_at + own.x * m.out_row + own.y * m.out_head + output_] = gated ? swiglu(factor * gate, sum) : sum;
    }
  }
}

void main() {
  uint rows = p.rows, first_row = gl_WorkGroupID.y * kRows, head = gl_WorkGroupID.z, matrix = head;
  uint group = gl_WorkGroupID.x;
  if (kGrouped) {
    if (!has_tile(gl_WorkGroupID.y)) return;
    ExpertTile tile = expert_tile(gl_WorkGroupID.y);
    matrix = tile.expert, first_row = tile.first, rows = tile.end;
    if (gl_LocalInvocationID.x < kRows)
      grouped[gl_LocalInvocationID.x] = row_and_choice(min(first_row + gl_LocalInvocationID.x, rows - 1u));
    barrier();
  } else if (rows == 0u) {
    rows = step_data.words[p.rows_word];
    if (kRows > 1u) {  // groups of rows that multiply the same outputs start one after the other
      uint at = gl_WorkGroupID.y * gl_NumWorkGroups.x + group;
      group = at / gl_NumWorkGroups.y, first_row = at % gl_NumWorkGroups.y * kRows;
    }
  }
  if (first_row >= rows) return;
  if (kAppends && head == gl_NumWorkGroups.z - 1u) {
    if (group == 0u) append_rows(first_row, rows);
    return;
  }
  if (kSide) {  // more: from which workgroup on, the matrix, and where its results go
    uint first_group = p.more[0];
    if (group >= first_group) {
      Matrix side = Matrix(p.more[1], p.more[2], p.more[3], p.more[4], p.more[5], 0);
      multiply(kSideFormat, 3, false, false, side, 0, first_row, rows, 0, group - first_group);
      return;
    }
  }
  if (kExperts > 0u) {
    choose(first_row, group == 0u && head == 0u);
    matrix = chosen[head];
  } else if (kSelected && !kGrouped) {
    matrix = uint(arena.numbers[p.ids_at + first_row * p.ids_row + head]);
  }
  Matrix m = Matrix(p.first + matrix * p.matrix, p.row, p.outputs, p.out_at, p.out_row, p.out_head);
  multiply(kFormat, 0, kGated, kAdds, m, p.gate_first + matrix * p.gate_matrix, first_row, rows, head, group);
}
