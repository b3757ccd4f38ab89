// What products take, those of few rows and those of many (products.cc fills it in).
layout(push_constant) uniform Params {
  uint in_at, in_row, in_head;     // floats; heads: matrices side by side, or a row's selected experts
  uint out_at, out_row, out_head;
  uint other_at, other_row;        // what is added to the result
  uint ids_at, ids_row;
  uint first, matrix, row;         // bytes: where the weight begins, and from one to the next
  uint gate_first, gate_matrix, gate_row;
  uint columns, outputs;
  uint rows, rows_word;            // how many rows there are; 0: a word of the step's data says it
  float epsilon, alpha, limit, shift;
  uint more[7];                    // what else the dispatch does, as product.comp says; or of sorted rows (below)
  uint norm_at;                    // in weights2
} p;

layout(constant_id = 0) const uint kFormat = 2;
layout(constant_id = 1) const uint kGateFormat = 2;
layout(constant_id = 2) const uint kRows = 1;      // of the step, that an invocation multiplies together
layout(constant_id = 3) const uint kOutputs = 2;   // rows of the weight, likewise
layout(constant_id = 4) const bool kSelected = false;  // matrices are experts that the ids name
layout(constant_id = 5) const bool kAdds = false;
layout(constant_id = 6) const bool kNormed = false;    // rows are normalised, by the vector in weights2
layout(constant_id = 7) const bool kGated = false;     // weights1 is the gate of what weights0 lifts
layout(constant_id = 8) const bool kAligned = true;    // all offsets and strides of `in` are multiples of 4
layout(constant_id = 9) const bool kWhole = true;      // rows of the weight are whole units

// Four columns of a row; those behind its end are none.
vec4 four_of_row(uint row, uint head, uint c) {
  uint at = p.in_at + row * p.in_row + head * p.in_head + c;
  return kWhole ? four_at(at, kAligned) : four_within(at, c, p.columns);
}
vec4 norm_weights(uint c) { return weights2.numbers[p.norm_at + (c >> 2)]; }

void load_weights(uint format, uint source, uint at, uint unit, uvec2 c, out vec4 a, out vec4 b) {
  decode8(format, source, at, unit, a, b);
  if (!kWhole) a = within(a, c.x, p.columns), b = within(b, c.y, p.columns);
}

float swiglu(float gate, float up) {
  float g = min(gate, p.limit), u = clamp(up, -p.limit, p.limit);
  return g / (1.0 + exp(-p.alpha * g)) * (u + p.shift);
}

// Rows that group.comp has sorted by experts. more: the list, its tiles, experts of a row.
struct ExpertTile {
  uint expert, first, end;  // places in the list
};
bool has_tile(uint tile) { return tile < uint(arena.numbers[p.more[1]]); }
ExpertTile expert_tile(uint tile) {
  uint at = p.more[1] + 4u * tile + 4u;
  return ExpertTile(uint(arena.numbers[at]), uint(arena.numbers[at + 1u]), uint(arena.numbers[at + 2u]));
}
uvec2 row_and_choice(uint place) {
  uint entry = uint(arena.numbers[p.more[0] + place]);
  return uvec2(entry / p.more[2], entry % p.more[2]);
}
