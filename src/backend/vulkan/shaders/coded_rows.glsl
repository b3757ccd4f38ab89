// Rows of activations in a workgroup's memory, in eight bits: 32 columns have a step, the largest of them over
// 127. Who includes it has kQuads and kSteps, room for 16 codes and for their step each.
shared uvec4 staged[kQuads];
shared vec2 steps[kSteps];  // and what the codes add up to, times that

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

// Codes of the `at`th 16 columns. most: the largest of the 32 that they belong to; factor: what the row is
// multiplied by.
void put_codes(uint at, vec4 x[4], float most, float factor) {
  float inverse = most > 0.0 ? 127.0 / most : 0.0;
  uvec4 codes;
  [[unroll]] for (uint k = 0; k < 4u; ++k) {
    // To 1.5 times 2^23, of which whole numbers are the last bits.
    uvec4 bits = floatBitsToUint(x[k] * inverse + 12582912.0) & 0xFFu;
    codes[k] = bits.x | bits.y << 8 | bits.z << 16 | bits.w << 24;
  }
  staged[at] = codes;
  float step = factor * most / 127.0;
  steps[at] = vec2(step, step * sum16(codes));
}

// What codes a and b of weights give with those of activations from two places on.
float coded_product(uvec4 a, uvec4 b, vec2 scales, vec2 added, uint from_a, uint from_b) {
  vec2 of_a = steps[from_a], of_b = steps[from_b];
  return scales.x * (of_a.x * dot16(a, staged[from_a])) + added.x * of_a.y +
         scales.y * (of_b.x * dot16(b, staged[from_b])) + added.y * of_b.y;
}
