// Runs of 32 numbers times activations in eight bits: what an invocation reads of a row of the usual formats at a
// time. 16 numbers of a run, a, and 16 others, b, have a scale and a minimum each. Activations have a step for
// 32 of their columns; codes of both are multiplied as integers, which are exact.
#ifndef RUNS_GLSL
#define RUNS_GLSL

#ifdef DOT4
#extension GL_EXT_spirv_intrinsics : require
// OpSDotKHR of four signed bytes each.
spirv_instruction(extensions = ["SPV_KHR_integer_dot_product"], capabilities = [6019, 6018], id = 4450)
int signed_dot(int a, int b, spirv_literal int format);
int whole_dot16(uvec4 a, uvec4 b) {
  ivec4 x = ivec4(a), y = ivec4(b);
  return signed_dot(x.x, y.x, 0) + signed_dot(x.y, y.y, 0) + signed_dot(x.z, y.z, 0) + signed_dot(x.w, y.w, 0);
}
float dot16(uvec4 a, uvec4 b) { return float(whole_dot16(a, b)); }
#else
float dot16(uvec4 a, uvec4 b) {
  return dot(signed_bytes(a.x), signed_bytes(b.x)) + dot(signed_bytes(a.y), signed_bytes(b.y)) +
         dot(signed_bytes(a.z), signed_bytes(b.z)) + dot(signed_bytes(a.w), signed_bytes(b.w));
}
#endif

// Formats that are read by runs; rows of the others are multiplied as floats, a unit at a time.
bool is_of_runs(uint format) {
  return format == kQ4_0 || format == kQ4_1 || format == kQ5_0 || format == kQ5_1 || format == kQ8_0 ||
         format == kQ4_K || format == kQ5_K || format == kQ6_K;
}
uint runs_of_block(uint format) { return format == kQ4_K || format == kQ5_K || format == kQ6_K ? 8u : 1u; }

// Words of a run as they lie there.
struct Run {
  uvec4 a, b, c;
};

uvec4 four_words(uint source, uint i) {
  return uvec4(word_of(source, i), word_of(source, i + 1u), word_of(source, i + 2u), word_of(source, i + 3u));
}

// at: where the run's block begins, an even byte; a multiple of 4 or 16 where the block's bytes are one.
Run read_run(uint format, uint source, uint at, uint run) {
  Run r = Run(uvec4(0), uvec4(0), uvec4(0));
  uint w = at >> 2, pair = run >> 1 & 3u, second = run & 1u;
  switch (format) {
    case kQ4_0: case kQ4_1: r.a = four_words(source, w), r.b.x = word_of(source, w + 4u); break;
    case kQ5_0: case kQ5_1:
      r.a = four_words(source, w), r.b.xy = uvec2(word_of(source, w + 4u), word_of(source, w + 5u));
      break;
    case kQ8_0:
      r.a = four_words(source, w), r.b = four_words(source, w + 4u), r.c.x = word_of(source, w + 8u);
      break;
    case kQ4_K: r.a = quad_of(source, at >> 4), r.b = quad_of(source, (at >> 4) + 1u + (run & 7u)); break;
    case kQ5_K:
      r.a = quad_of(source, at >> 4), r.b = quad_of(source, (at >> 4) + 3u + (run & 7u));
      r.c = quad_of(source, (at >> 4) + 1u + second);
      break;
    case kQ6_K: {
      uint h = pair >> 1, q = pair & 1u, scale = at + 192u + 8u * h + 2u * q + second;
      w = (at + 64u * h + 32u * q + 16u * second) >> 2;
      r.a = four_words(source, w), r.c.x = word_of(source, w + 4u);
      w = (at + 128u + 32u * h + 16u * second) >> 2;
      r.b = four_words(source, w), r.c.y = word_of(source, w + 4u);
      r.c.z = byte1(source, scale) | byte1(source, scale + 4u) << 8, r.c.w = word_of(source, (at + 208u) >> 2);
      break;
    }
  }
  return r;
}

// Four words from two bytes behind the first of five on: where blocks begin within a word, they are the last four.
uvec4 words_behind(uvec4 w, uint last, bool within) {
  return within ? uvec4(w.yzw, last) : w >> 16 | uvec4(w.yzw, last) << 16;
}
// Four bits of each of four words' worth, from bit 0 on, as bit 4 of bytes.
uvec4 fifth_bits(uint bits) {
  return uvec4(spread(bits, 4u), spread(bits >> 4, 4u), spread(bits >> 8, 4u), spread(bits >> 12, 4u));
}

// A run's codes, as signed bytes.
void codes_of(uint format, Run r, uint at, uint run, out uvec4 a, out uvec4 b) {
  bool within = (at & 2u) != 0u;
  uint pair = run >> 1 & 3u;
  uvec4 v = uvec4(0);
  switch (format) {
    case kQ4_0: v = words_behind(r.a, r.b.x, within); break;
    case kQ4_1: v = uvec4(r.a.yzw, r.b.x); break;
    case kQ5_0: v = words_behind(uvec4(r.a.yzw, r.b.x), r.b.y, within); break;
    case kQ5_1: v = uvec4(r.a.zw, r.b.xy); break;
    case kQ4_K: case kQ5_K: v = r.b; break;
    case kQ6_K: v = within ? r.a >> 16 | uvec4(r.a.yzw, r.c.x) << 16 : r.a; break;
    case kQ8_0:
      a = words_behind(r.a, r.b.x, within), b = words_behind(r.b, r.c.x, within);
      return;
  }
  a = v & 0x0F0F0F0Fu, b = v >> 4 & 0x0F0F0F0Fu;
  switch (format) {
    case kQ5_0: case kQ5_1: {
      uint fifth = format == kQ5_1 || within ? r.a.y : r.a.x >> 16 | r.a.y << 16;
      a |= fifth_bits(fifth), b |= fifth_bits(fifth >> 16);
      return;
    }
    case kQ5_K: {
      uvec4 fifth = r.c >> (2u * pair);
      a |= (fifth & 0x01010101u) << 4, b |= (fifth >> 1 & 0x01010101u) << 4;
      return;
    }
    case kQ6_K: {
      uvec4 high = (within ? r.b >> 16 | uvec4(r.b.yzw, r.c.y) << 16 : r.b) >> (2u * (pair & 1u));
      a |= (high & 0x03030303u) << 4, b |= high & 0x30303030u;
      return;
    }
  }
}

// What a and b are multiplied by, and what is added for each number of them.
void scales_of(uint format, Run r, uint at, uint run, out vec2 scales, out vec2 added) {
  uint first = (at & 2u) != 0u ? r.a.x >> 16 : r.a.x;
  vec2 both = unpackHalf2x16(r.a.x);
  switch (format) {
    case kQ4_0: scales = vec2(half_at(first)), added = -8.0 * scales; return;
    case kQ5_0: scales = vec2(half_at(first)), added = -16.0 * scales; return;
    case kQ8_0: scales = vec2(half_at(first)), added = vec2(0); return;
    case kQ4_1: case kQ5_1: scales = both.xx, added = both.yy; return;
    case kQ4_K: case kQ5_K:
      scales_and_minima(r.a, run >> 1 & 3u, scales, added);
      added = -added;
      return;
    case kQ6_K: {
      float d = half_in(r.c.w, at);
      int s = int(r.c.z);
      scales = d * vec2(bitfieldExtract(s, 0, 8), bitfieldExtract(s, 8, 8)), added = -32.0 * scales;
      return;
    }
  }
  scales = added = vec2(0);
}

// Where the run's a and b are among a row's 16s of columns.
uvec2 sixteens(uint format, uint run) {
  uint pair = run >> 1 & 3u, in_block = 16u * (run >> 3) + (run & 1u);
  if (format == kQ4_K || format == kQ5_K) return in_block + 4u * pair + uvec2(0, 2);
  if (format == kQ6_K) return in_block + 8u * (pair >> 1) + 2u * (pair & 1u) + uvec2(0, 4);
  return 2u * run + uvec2(0, 1);
}

#endif
