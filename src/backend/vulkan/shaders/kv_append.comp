#version 450
#extension GL_GOOGLE_include_directive : require
// A row enters the cache: an invocation has a word of it.
#include "common.glsl"
layout(local_size_x = 64) in;

layout(push_constant) uniform Params {
  uint latent_at, latent_row, key_at, key_row;
  uint rank, columns, row_words;
  uint coded, exact_word, scales_word;  // of eight bits
  uint slots_at;
} p;
layout(constant_id = 0) const uint kType = 1;
#include "cache_write.glsl"

float column_of(uint row, uint c) {
  return c < p.rank ? arena.numbers[p.latent_at + row * p.latent_row + c]
                    : arena.numbers[p.key_at + row * p.key_row + c - p.rank];
}

void main() {
  uint row = gl_WorkGroupID.y;
  if (row >= step_data.words[kRowsAt]) return;
  uint to = step_data.words[p.slots_at + row] * p.row_words;
  for (uint w = gl_LocalInvocationID.x; w < p.row_words; w += gl_WorkGroupSize.x)
    cache.words[to + w] = cache_word(row, w, p.columns, p.coded, p.exact_word, p.scales_word);
}
