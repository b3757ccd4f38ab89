#version 450
#extension GL_GOOGLE_include_directive : require
// Few rows times a matrix: a subgroup has some rows of the weight at a time, and its invocations take turns at
// their units, with kAhead of them under way: a row is read in one or a few trips to memory. Normalising costs
// nothing here: the sum of squares comes along. Loops over arrays are unrolled throughout: what is indexed by a
// variable has no registers.
//
// What stands beside a product or before it is done here, too, where it would otherwise be a dispatch of its
// own; at most one of these:
// - kSide: a second product of the same rows, without a gate, by the workgroups from a number on;
// - kExperts: every workgroup chooses the row's experts from the router's logits, and one writes them down;
// - kMerged: the rows are what stretches of a context gave (attend.comp), put together on the way in;
// - kAppends: the last of z makes the rows of the latent cache.
#include "formats.glsl"
#include "subgroups.glsl"
#include "product_params.glsl"
layout(local_size_x = 128) in;

// Of rows so many columns at a time are put where the whole workgroup reads them, normalised; 0: none.
layout(constant_id = 11) const uint kStaged = 0;
layout(constant_id = 12) const bool kSide = false;
layout(constant_id = 13) const uint kSideFormat = 0;
layout(constant_id = 14) const uint kMerged = 0;  // stretches
layout(constant_id = 15) const uint kExperts = 0;
layout(constant_id = 16) const bool kSigmoid = false;
layout(constant_id = 17) const bool kBiased = false;
layout(constant_id = 18) const bool kNormalized = false;
layout(constant_id = 19) const bool kAppends = false;
const uint kBiasSource = 3;
#include "scores.glsl"
#include "latent_row.glsl"

const uint kStagedFours = kStaged / 4u, kStageSteps = (kStagedFours + 127u) / 128u;
shared vec4 staged[kRows * kStagedFours + 1u];
shared float row_squares[kRows * 128u];

// Columns of rows from one on; and what their squares add up to, in this invocation.
void stage(uint first_row, uint rows, uint head, uint first_column, inout float squares[kRows]) {
  uint fours = min(kStaged, p.columns - first_column) / 4u;
  [[unroll]] for (uint r = 0; r < kRows; ++r) {
    uint from = p.in_at + min(first_row + r, rows - 1u) * p.in_row + head * p.in_head + first_column;
    vec4 x[kStageSteps + 1u];
    [[unroll]] for (uint step = 0; step < kStageSteps; ++step)
      x[step] = four_at(from + 4u * min(step * 128u + gl_LocalInvocationID.x, fours - 1u), true);
    [[unroll]] for (uint step = 0; step < kStageSteps; ++step) {
      uint c = step * 128u + gl_LocalInvocationID.x;
      if (c >= fours) continue;
      if (kNormed) {
        squares[r] += dot(x[step], x[step]);
        x[step] *= norm_weights(first_column + 4u * c);
      }
      staged[r * kStagedFours + c] = x[step];
    }
  }
}

// What normalises each row, of all that was staged.
void make_factors(float squares[kRows], out float factors[kRows]) {
  [[unroll]] for (uint r = 0; r < kRows; ++r) {
    float sum = subgroupAdd(squares[r]);
    if (subgroupElect()) row_squares[r * 128u + gl_SubgroupID] = sum;
  }
  barrier();
  [[unroll]] for (uint r = 0; r < kRows; ++r) {
    float sum = 0;
    for (uint g = 0; g < gl_NumSubgroups; ++g) sum += row_squares[r * 128u + g];
    factors[r] = inversesqrt(sum / float(p.columns) + p.epsilon);
  }
  barrier();
}

// What the workgroup's rows have of a head. more: where the partial results begin.
void merge(uint first_row, uint rows, uint head) {
  uint each = kStaged + 4u;
  for (uint r = 0; r < kRows; ++r) {
    uint row = min(first_row + r, rows - 1u), at = p.more[0] + (row * gl_NumWorkGroups.z + head) * kMerged * each;
    float largest = -kInfinity, total = 0, weights[kMerged + 1u];
    [[unroll]] for (uint s = 0; s < kMerged; ++s) {
      weights[s] = arena.numbers[at + s * each];
      largest = max(largest, weights[s]);
    }
    [[unroll]] for (uint s = 0; s < kMerged; ++s) {
      weights[s] = exp(weights[s] - largest);
      total += arena.numbers[at + s * each + 1u] * weights[s];
    }
    for (uint c = gl_LocalInvocationID.x; c < kStaged / 4u; c += gl_WorkGroupSize.x) {
      vec4 sum = vec4(0);
      [[unroll]] for (uint s = 0; s < kMerged; ++s)
        sum += weights[s] * arena4.numbers[((at + s * each) >> 2) + 1u + c];
      staged[r * kStaged / 4u + c] = sum / total;
    }
  }
}

// The row's experts: those than which fewer are better. more: where logits are (and from row to row), where
// weights go (likewise), and what they are scaled by.
void choose(uint row, bool writes) {
  uint used = gl_NumWorkGroups.z, i = gl_LocalInvocationID.x;
  make_scores(p.more[0] + row * p.more[1]);
  for (uint e = i; e < kExperts; e += gl_WorkGroupSize.x) {
    float own = selection[e];
    uint better = 0;
    for (uint f = 0; f < kExperts; ++f)
      better += selection[f] > own || (selection[f] == own && f < e) ? 1u : 0u;
    if (better < used) chosen[better] = e;
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
  uint out_at, out_row;
};

const uint kRaws = kAhead * kOutputs;

// Workgroup `group` of `groups` multiplies its share. What weights are read first is under way while rows are
// staged.
void multiply(uint format, uint source, bool gated, bool adds, Matrix m, uint gates, uint first_row, uint rows,
              uint head, uint group, uint groups) {
  uint together = gl_NumSubgroups * kOutputs, stage_columns = kStaged > 0u ? kStaged : p.columns;
  float squares[kRows], factors[kRows];
  [[unroll]] for (uint r = 0; r < kRows; ++r) squares[r] = 0, factors[r] = 1;
  for (uint base = group * together; base < m.outputs; base += groups * together) {
    uint n = base + gl_SubgroupID * kOutputs;
    bool is_first = base == group * together;
    float sums[kRows * kOutputs], gate_sums[kRows * kOutputs];
    [[unroll]] for (uint i = 0; i < kRows * kOutputs; ++i) sums[i] = gate_sums[i] = 0;
    for (uint first_column = 0; first_column < p.columns; first_column += stage_columns) {
      uint end = (min(p.columns, first_column + stage_columns) + 7u) / 8u;
      Raw raws[kRaws], gate_raws[kRaws];
      bool is_staged = kStaged == 0u || (!is_first && kStaged >= p.columns);
      for (uint first = first_column / 8u; first < end; first += kAhead * gl_SubgroupSize) {
        uint own = first + gl_SubgroupInvocationID;
        [[unroll]] for (uint k = 0; k < kRaws; ++k) {
          uint unit = min(own + k / kOutputs * gl_SubgroupSize, end - 1u), output_row = min(n + k % kOutputs, m.outputs - 1u);
          raws[k] = read_raw(format, source, m.first + output_row * m.row, unit);
          if (gated) gate_raws[k] = read_raw(kGateFormat, 1, gates + output_row * p.gate_row, unit);
        }
        if (!is_staged) {
          if (first_column > 0u || !is_first) barrier();
          if (kMerged > 0u) merge(first_row, rows, head);
          else stage(first_row, rows, head, first_column, squares);
          barrier();
          is_staged = true;
        }
        [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) {
          uint unit = min(own + ahead * gl_SubgroupSize, end - 1u);
          bool is_there = own + ahead * gl_SubgroupSize < end;
          uvec2 c = columns8(format, unit);
          vec4 xa[kRows], xb[kRows];
          [[unroll]] for (uint r = 0; r < kRows; ++r) {
            if (kStaged > 0u) {
              uint at = r * kStagedFours;
              xa[r] = staged[at + (c.x - first_column >> 2)], xb[r] = staged[at + (c.y - first_column >> 2)];
            } else {
              load_unit(min(first_row + r, rows - 1u), head, c, xa[r], xb[r]);
              if (kNormed) {
                squares[r] += is_there && is_first ? dot(xa[r], xa[r]) + dot(xb[r], xb[r]) : 0.0;
                xa[r] *= norm_weights(c.x), xb[r] *= norm_weights(c.y);
              }
            }
          }
          [[unroll]] for (uint i = 0; i < kOutputs; ++i) {
            uint output_row = min(n + i, m.outputs - 1u), k = ahead * kOutputs + i;
            vec4 a, b;
            decode(format, source, raws[k], m.first + output_row * m.row, unit, c, a, b);
            [[unroll]] for (uint r = 0; r < kRows; ++r)
              sums[i * kRows + r] += is_there ? dot(a, xa[r]) + dot(b, xb[r]) : 0.0;
            if (gated) {
              decode(kGateFormat, 1, gate_raws[k], gates + output_row * p.gate_row, unit, c, a, b);
              [[unroll]] for (uint r = 0; r < kRows; ++r)
                gate_sums[i * kRows + r] += is_there ? dot(a, xa[r]) + dot(b, xb[r]) : 0.0;
            }
          }
        }
      }
    }
    if (kNormed && kStaged > 0u && is_first) make_factors(squares, factors);
    [[unroll]] for (uint r = 0; r < kRows; ++r) {
      if (kNormed && kStaged == 0u)
        factors[r] = inversesqrt(subgroupAdd(squares[r]) / float(p.columns) + p.epsilon);
      [[unroll]] for (uint i = 0; i < kOutputs; ++i) {
        float sum = factors[r] * subgroupAdd(sums[i * kRows + r]), gate = 0;
        if (gated) gate = factors[r] * subgroupAdd(gate_sums[i * kRows + r]);
        uint row = first_row + r, at = m.out_at + row * m.out_row + n + i;
        if (!subgroupElect() || row >= rows || n + i >= m.outputs) continue;
        if (adds) sum += arena.numbers[p.other_at + row * p.other_row + n + i];
        arena.numbers[at] = gated ? swiglu(gate, sum) : sum;
      }
    }
  }
}

void main() {
  uint rows = step_data.words[p.rows_word], first_row = gl_WorkGroupID.y * kRows, head = gl_WorkGroupID.z;
  if (first_row >= rows) return;
  uint group = gl_WorkGroupID.x, groups = gl_NumWorkGroups.x;
  if (kAppends && head == gl_NumWorkGroups.z - 1u) {
    if (group == 0u) append_rows(first_row, rows);
    return;
  }
  if (kSide) {  // more: from which workgroup on, the matrix, and where its results go
    uint first_group = p.more[0];
    if (group >= first_group) {
      Matrix side = Matrix(p.more[1], p.more[2], p.more[3], p.more[4], p.more[5]);
      multiply(kSideFormat, 3, false, false, side, 0, first_row, rows, 0, group - first_group, groups - first_group);
      return;
    }
    groups = first_group;
  }
  uint matrix = head;
  if (kExperts > 0u) {
    choose(first_row, group == 0u && head == 0u);
    matrix = chosen[head];
  } else if (kSelected) {
    matrix = uint(arena.numbers[p.ids_at + first_row * p.ids_row + head]);
  }
  Matrix m = Matrix(p.first + matrix * p.matrix, p.row, p.outputs, p.out_at + head * p.out_head, p.out_row);
  multiply(kFormat, 0, kGated, kAdds, m, p.gate_first + matrix * p.gate_matrix, first_row, rows, head, group, groups);
}
