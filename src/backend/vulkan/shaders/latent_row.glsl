// A row of latent attention on its way into the cache: the latent is normed by the vector in weights2, the key
// behind it is rotated. All invocations of a workgroup call it together.
layout(constant_id = 20) const uint kType = 1;
layout(constant_id = 21) const uint kRank = 0;
layout(constant_id = 22) const uint kRotated = 0;
layout(constant_id = 23) const bool kHalves = false;
layout(constant_id = 24) const uint kRowWords = 0;
layout(constant_id = 25) const uint kCoded = 0;
layout(constant_id = 26) const uint kExactWord = 0;
layout(constant_id = 27) const uint kScalesWord = 0;
#include "cache_write.glsl"

shared float latent_row[kRank + kRotated + 1u];
float column_of(uint row, uint c) { return latent_row[c]; }

void append_latent(uint row, uint kv, uint angles_at, uint slots_at, float epsilon) {
  uint i = gl_LocalInvocationID.x, pairs = kRotated / 2u, to = step_data.words[slots_at + row] * kRowWords;
  for (uint k = i; k < pairs; k += gl_WorkGroupSize.x) {
    uint angle = angles_at + 2u * (row * pairs + k), first = kHalves ? k : 2u * k, second = kHalves ? pairs + k : 2u * k + 1u;
    float cosine = uintBitsToFloat(step_data.words[angle]), sine = uintBitsToFloat(step_data.words[angle + 1u]);
    float a = arena.numbers[kv + kRank + first], b = arena.numbers[kv + kRank + second];
    latent_row[kRank + first] = a * cosine - b * sine;
    latent_row[kRank + second] = a * sine + b * cosine;
  }
  float squares = 0;
  for (uint c = i; c < kRank; c += gl_WorkGroupSize.x) {
    float x = arena.numbers[kv + c];
    squares += x * x;
  }
  float factor = inversesqrt(workgroup_sum(squares) / float(kRank) + epsilon);
  for (uint c = i; c < kRank; c += gl_WorkGroupSize.x)
    latent_row[c] = arena.numbers[kv + c] * factor * weights2.numbers[c >> 2][c & 3u];
  barrier();
  for (uint w = i; w < kRowWords; w += gl_WorkGroupSize.x)
    cache.words[to + w] = cache_word(row, w, kRank + kRotated, kCoded, kExactWord, kScalesWord);
  barrier();
}
