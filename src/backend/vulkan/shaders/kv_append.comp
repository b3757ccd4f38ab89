#version 450
#extension GL_GOOGLE_include_directive : require
// A row enters the cache (quant/cache_row.h): an invocation has a word of it, or a run of 32 codes.
#include "common.glsl"
layout(local_size_x = 64) in;

layout(push_constant) uniform Params {
  uint latent_at, latent_row, key_at, key_row;
  uint rank, columns, row_words;
  uint coded, exact_word, scales_word;  // of eight bits
  uint slots_at;
} p;
layout(constant_id = 0) const uint kType = 1;  // as quant/types.h numbers them

float column_of(uint row, uint c) {
  return c < p.rank ? arena.numbers[p.latent_at + row * p.latent_row + c]
                    : arena.numbers[p.key_at + row * p.key_row + c - p.rank];
}
uint halves_at(uint row, uint c) {
  uint second = c + 1u < p.columns ? half_of(column_of(row, c + 1u)) : 0u;
  return half_of(column_of(row, c)) | second << 16;
}

// The smallest binary16 that is not below a number of at least 0.
uint half_not_below(float value) {
  uint nearest = half_of(value);
  return half_at(nearest) < value ? nearest + 1u : nearest;
}

uint scale_of(uint row, uint run) {
  float largest = 0;
  for (uint c = 32u * run; c < min(32u * run + 32u, p.coded); ++c) largest = max(largest, abs(column_of(row, c)));
  return half_not_below(largest / 127.0);
}

void main() {
  uint row = gl_WorkGroupID.y;
  if (row >= step_data.words[kRowsAt]) return;
  uint to = step_data.words[p.slots_at + row] * p.row_words;
  for (uint w = gl_LocalInvocationID.x; w < p.row_words; w += gl_WorkGroupSize.x) {
    uint word = 0;
    if (kType == 0) {
      word = floatBitsToUint(column_of(row, w));
    } else if (kType == 1) {
      word = halves_at(row, 2u * w);
    } else if (w >= p.scales_word) {
      uint run = 2u * (w - p.scales_word), runs = (p.coded + 31u) / 32u;
      if (run < runs) word = scale_of(row, run);
      if (run + 1u < runs) word |= scale_of(row, run + 1u) << 16;
    } else if (w >= p.exact_word) {
      uint c = p.coded + 2u * (w - p.exact_word);
      if (c < p.columns) word = halves_at(row, c);
    } else if (4u * w < p.coded) {
      float scale = half_at(scale_of(row, 4u * w / 32u)), inverse = scale > 0.0 ? 1.0 / scale : 0.0;
      for (uint i = 0; i < 4 && 4u * w + i < p.coded; ++i)
        word |= (uint(int(clamp(roundEven(column_of(row, 4u * w + i) * inverse), -128.0, 127.0))) & 255u) << (8u * i);
    }
    cache.words[to + w] = word;
  }
}
