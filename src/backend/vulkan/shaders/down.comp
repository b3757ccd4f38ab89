#version 450
#extension GL_GOOGLE_include_directive : require
// What a row's experts give, weighted and added up, with the shared expert and what came before. An invocation
// has some outputs at a time, kLanes of them share these, and take turns at the runs of all experts' rows; the
// activations of all experts stand in the workgroup's memory in eight bits (runs.glsl), or, of several rows, where
// codes.comp has put them. Rows of formats without
// runs are multiplied as floats, a unit at a time.
#include "formats.glsl"
#include "runs.glsl"
const uint kSize = 256;
layout(local_size_x = kSize) in;

layout(push_constant) uniform Params {
  uint in_at, in_row, in_head;
  uint out_at, out_row;
  uint other_at, other_row;      // what is added
  uint ids_at, ids_row, weights_at, weights_row;
  uint first, matrix, row;       // bytes, of the experts' weights
  uint shared_at, shared_row;    // the shared expert's rows
  uint shared_first, shared_bytes;
  uint outputs;
} p;

layout(constant_id = 0) const uint kFormat = 2;
layout(constant_id = 1) const uint kSharedFormat = 2;
layout(constant_id = 2) const bool kShared = false;
layout(constant_id = 3) const uint kOutputs = 2;
layout(constant_id = 4) const uint kAhead = 1;         // runs that an invocation has under way
layout(constant_id = 5) const bool kAdds = false;
layout(constant_id = 6) const uint kColumns = 32;        // of an expert's row
layout(constant_id = 7) const uint kSharedColumns = 32;  // of the shared expert's
layout(constant_id = 8) const uint kSharedAhead = 1;
layout(constant_id = 9) const uint kLanes = 32;
layout(constant_id = 11) const uint kUsed = 1;
layout(constant_id = 10) const bool kCoded = true;
layout(constant_id = 12) const bool kMade = false;  // `in` and the shared expert's rows are codes, in quads
// 16 columns each, of all experts and of the shared one; the workgroup's memory has them.
const uint kSteps = !kCoded || kMade ? 1u : kUsed * kColumns / 16u + (kShared ? kSharedColumns / 16u : 0u), kQuads = kSteps;
#include "coded_rows.glsl"

const uint kSlots = kSize + kSize / 32u;  // of which no 32 lanes apart share a bank
shared float parts[kOutputs * kSlots];
float sums[kOutputs];

uint row_at(uint first, uint row, uint output_) { return first + min(output_, p.outputs - 1u) * row; }
uint block_at(uint format, uint row, uint run) { return row + block_bytes(format) * (run / runs_of_block(format)); }

// Of a row of columns that begins at a number of the arena, and is multiplied by a factor.
void put_sixteen(uint item, uint from, uint c, float factor) {
  vec4 x[4];
  float most = 0;
  [[unroll]] for (uint k = 0; k < 4u; ++k) {
    x[k] = arena4.numbers[((from + c) >> 2) + k];
    most = max(most, max(largest_of(x[k]), largest_of(arena4.numbers[((from + (c ^ 16u)) >> 2) + k])));
  }
  put_codes(item, x, most, factor);
}

// The experts' columns one after the other, then the shared expert's.
void stage(uint row) {
  const uint each = kColumns / 16u, of_experts = kUsed * each;
  for (uint item = gl_LocalInvocationID.x; item < kSteps; item += kSize) {
    uint k = item / each, from = p.in_at + row * p.in_row + k * p.in_head;
    if (item < of_experts)
      put_sixteen(item, from, item % each * 16u, arena.numbers[p.weights_at + row * p.weights_row + k]);
    else put_sixteen(item, p.shared_at + row * p.shared_row, (item - of_experts) * 16u, 1.0);
  }
}

// 16 columns of expert k's row, or (k = kUsed) of the shared expert's.
Sixteen sixteen_of(uint row, uint k, uint at) {
  if (!kMade) return staged_sixteen(k * (kColumns / 16u) + at);
  if (k == kUsed) return made_sixteen(p.shared_at + row * p.shared_row, kSharedColumns, at);
  return made_sixteen(p.in_at + row * p.in_row + k * p.in_head, kColumns, at);
}

void add_run(uint format, Run read, uint at, uint run, uint row, uint k, float factor, uint output_) {
  uvec2 place = sixteens(format, run);
  uvec4 a, b;
  vec2 scales, added;
  codes_of(format, read, at, run, a, b);
  scales_of(format, read, at, run, scales, added);
  sums[output_] +=
      factor * coded_product(a, b, scales, added, sixteen_of(row, k, place.x), sixteen_of(row, k, place.y));
}

void add_coded(uint row, uint lane, uint n) {
  const uint runs = kColumns / 32u, shared_runs = kSharedColumns / 32u, count = kUsed * runs;
  uint ids = p.ids_at + row * p.ids_row;
  for (uint first = 0; first < count; first += kAhead * kLanes) {
    Run reads[kAhead * kOutputs];
    uint matrices[kAhead];
    [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) {
      uint item = min(first + lane + ahead * kLanes, count - 1u), run = item % runs;
      matrices[ahead] = p.first + uint(arena.numbers[ids + item / runs]) * p.matrix;
      [[unroll]] for (uint i = 0; i < kOutputs; ++i)
        reads[ahead * kOutputs + i] =
            read_run(kFormat, 0, block_at(kFormat, row_at(matrices[ahead], p.row, n + i), run), run);
    }
    if (!kMade && first == 0u) {
      stage(row);
      barrier();
    }
    [[unroll]] for (uint ahead = 0; ahead < kAhead; ++ahead) {
      bool is_there = first + lane + ahead * kLanes < count;
      uint item = min(first + lane + ahead * kLanes, count - 1u), run = item % runs, k = item / runs;
      float factor = kMade ? arena.numbers[p.weights_at + row * p.weights_row + k] : 1.0;
      [[unroll]] for (uint i = 0; i < kOutputs; ++i)
        add_run(kFormat, reads[ahead * kOutputs + i], block_at(kFormat, row_at(matrices[ahead], p.row, n + i), run), run,
                row, k, is_there ? factor : 0.0, i);
    }
  }
  if (!kShared) return;
  for (uint first = 0; first < shared_runs; first += kSharedAhead * kLanes) {
    [[unroll]] for (uint k = 0; k < kSharedAhead * kOutputs; ++k) {
      float factor = first + lane + k / kOutputs * kLanes < shared_runs ? 1.0 : 0.0;
      uint run = min(first + lane + k / kOutputs * kLanes, shared_runs - 1u);
      uint at = block_at(kSharedFormat, row_at(p.shared_first, p.shared_bytes, n + k % kOutputs), run);
      add_run(kSharedFormat, read_run(kSharedFormat, 1, at, run), at, run, row, kUsed, factor, k % kOutputs);
    }
  }
}

float multiplied(uint format, uint source, uint row, uint unit, uint from) {
  uvec2 c = columns8(format, unit);
  vec4 a, b;
  decode8(format, source, row, unit, a, b);
  return dot(a, four_at(from + c.x, true)) + dot(b, four_at(from + c.y, true));
}

void add_floats(uint row, uint lane, uint n) {
  const uint units = kColumns / 8u, shared_units = kSharedColumns / 8u;
  uint count = kUsed * units, ids = p.ids_at + row * p.ids_row, factors = p.weights_at + row * p.weights_row;
  for (uint item = lane; item < count; item += kLanes) {
    uint k = item / units, from = p.in_at + row * p.in_row + k * p.in_head;
    uint matrix = p.first + uint(arena.numbers[ids + k]) * p.matrix;
    float factor = arena.numbers[factors + k];
    [[unroll]] for (uint i = 0; i < kOutputs; ++i)
      sums[i] += factor * multiplied(kFormat, 0, row_at(matrix, p.row, n + i), item % units, from);
  }
  for (uint unit = lane; kShared && unit < shared_units; unit += kLanes) {
    [[unroll]] for (uint i = 0; i < kOutputs; ++i)
      sums[i] += multiplied(kSharedFormat, 1, row_at(p.shared_first, p.shared_bytes, n + i), unit,
                            p.shared_at + row * p.shared_row);
  }
}

void main() {
  uint row = gl_WorkGroupID.y, i = gl_LocalInvocationID.x, outputs = kSize / kLanes * kOutputs;
  if (row >= step_data.words[kRowsAt]) return;
  uint lane = i % kLanes, first_output = gl_WorkGroupID.x * outputs, n = first_output + i / kLanes * kOutputs;
  [[unroll]] for (uint k = 0; k < kOutputs; ++k) sums[k] = 0;
  if (kCoded) add_coded(row, lane, n);
  else add_floats(row, lane, n);
  [[unroll]] for (uint k = 0; k < kOutputs; ++k) parts[k * kSlots + i + i / 32u] = sums[k];
  barrier();
  n = first_output + i;
  if (i >= outputs || n >= p.outputs) return;
  float sum = kAdds ? arena.numbers[p.other_at + row * p.other_row + n] : 0.0;
  uint slot = i / kOutputs;
  for (uint l = slot * kLanes; l < (slot + 1u) * kLanes; ++l) sum += parts[i % kOutputs * kSlots + l + l / 32u];
  arena.numbers[p.out_at + row * p.out_row + n] = sum;
}
