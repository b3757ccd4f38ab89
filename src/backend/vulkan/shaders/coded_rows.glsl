// Rows of activations in eight bits: 32 columns have a step, the largest of them over 127. Who includes it has
// kQuads and kSteps, room in the workgroup's memory for 16 codes and for their step each.
shared uvec4 staged[kQuads];
shared vec2 steps[kSteps];

// 16 columns; steps: one of the codes', and what the codes add up to, times that.
struct Sixteen {
  uvec4 codes;
  vec2 steps;
};

float largest_of(vec4 v) {
  vec4 m = abs(v);
  return max(max(m.x, m.y), max(m.z, m.w));
}

// What 16 codes add up to, exactly. A compiler may add floats in an order that loses bits, as NVIDIA's did.
float sum16(uvec4 codes) {
  uvec4 biased = codes ^ 0x80808080u, pairs = (biased & 0x00FF00FFu) + (biased >> 8 & 0x00FF00FFu);
  uint both = pairs.x + pairs.y + pairs.z + pairs.w;
  return float(int((both & 0xFFFFu) + (both >> 16)) - 16 * 128);
}

// most: the largest of the 32 that the columns belong to; factor: what the row is multiplied by.
Sixteen coded_sixteen(vec4 x[4], float most, float factor) {
  float inverse = most > 0.0 ? 127.0 / most : 0.0;
  uvec4 codes;
  [[unroll]] for (uint k = 0; k < 4u; ++k) {
    // To 1.5 times 2^23, of which whole numbers are the last bits.
    uvec4 bits = floatBitsToUint(x[k] * inverse + 12582912.0) & 0xFFu;
    codes[k] = bits.x | bits.y << 8 | bits.z << 16 | bits.w << 24;
  }
  float step = factor * most / 127.0;
  return Sixteen(codes, vec2(step, step * sum16(codes)));
}

// The `at`th 16 columns of what the workgroup has.
void put_codes(uint at, vec4 x[4], float most, float factor) {
  Sixteen coded = coded_sixteen(x, most, factor);
  staged[at] = coded.codes, steps[at] = coded.steps;
}
Sixteen staged_sixteen(uint at) { return Sixteen(staged[at], steps[at]); }

// The same where codes.comp made them of a row of so many columns, in quads of the arena from `row` on.
Sixteen made_sixteen(uint row, uint columns, uint at) {
  vec4 two = arena4.numbers[row + columns / 16u + at / 2u];
  return Sixteen(floatBitsToUint(arena4.numbers[row + at]), at % 2u == 0u ? two.xy : two.zw);
}

// What codes a and b of weights give with those of activations.
float coded_product(uvec4 a, uvec4 b, vec2 scales, vec2 added, Sixteen of_a, Sixteen of_b) {
  return scales.x * (of_a.steps.x * dot16(a, of_a.codes)) + added.x * of_a.steps.y +
         scales.y * (of_b.steps.x * dot16(b, of_b.codes)) + added.y * of_b.steps.y;
}
